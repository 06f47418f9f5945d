"""MART: adversarial training with more weight on misclassified examples."""

from functools import partial

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import boosted_cross_entropy, cross_entropy, divergence
from atent.methods import Count, Scale, Size, Start, method
from atent.threat import Threat


@method
class Mart:
    """MART: boosted cross-entropy at the worst point, and a KL term with most weight on misclassified x.

        loss = BCE(f(x'), y) + beta (1 - p_y(x)) KL(p(x) || p(x')),   x' by PGD on the cross-entropy, in eval mode
        BCE  = -log p_y - log(1 - max over wrong k of p_k)

    Wang et al. 2020, https://openreview.net/forum?id=rklOg6EFwS. Differs from the authors' code in: the logarithms are
    exact where probabilities vanish (theirs adds constants of 1e-12 to 1e-4).
    """

    beta: Scale = 5.0
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.0
    start: Start = "near"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat) as threat:
            search = partial(worst_point, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
            x_adv = search(model, x, y, threat, generator)
            clean, adversarial = model(x), model(x_adv)
            unsure = 1 - (-cross_entropy(clean, y)).exp()
            loss = boosted_cross_entropy(adversarial, y) + self.beta * unsure * divergence(adversarial, of=clean)
            yield Term(loss, adversarial, x_adv)
