"""MART: adversarial training with more weight on misclassified examples."""

from dataclasses import KW_ONLY

from torch import Tensor, nn

from atent.defenses.protocols import Search, Term, Terms
from atent.losses import boosted_cross_entropy, cross_entropy, divergence
from atent.methods import Scale, Size, Start, method


@method
class Mart(Search):
    """MART: boosted cross-entropy at the worst point, and a KL term with most weight on misclassified x.

        loss = BCE(f(x'), y) + beta (1 - p_y(x)) KL(p(x) || p(x')),   x' by PGD on the cross-entropy, in eval mode
        BCE  = -log p_y - log(1 - max over wrong k of p_k)

    Wang et al. 2020, https://openreview.net/forum?id=rklOg6EFwS. Differs from the authors' code in: the logarithms are
    exact where probabilities vanish (theirs adds constants of 1e-12 to 1e-4).
    """

    beta: Scale = 5.0
    _: KW_ONLY
    reach: Size = 2.0
    start: Start = "near"

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:
        clean, adversarial = model(x), model(found)
        unsure = 1 - (-cross_entropy(clean, y)).exp()
        boosted = boosted_cross_entropy(adversarial, y, self.label_smoothing)
        yield Term(boosted + self.beta * unsure * divergence(adversarial, of=clean), adversarial, found)
