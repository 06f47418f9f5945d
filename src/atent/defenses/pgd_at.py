"""Adversarial training on the last point of PGD."""

from torch import Tensor, nn

from atent.defenses.protocols import Search, Term, Terms
from atent.losses import cross_entropy
from atent.methods import method


@method
class PgdAt(Search):
    """PGD adversarial training: cross-entropy at the worst point that PGD finds.

        loss = CE(f(x'_K), y),   x'_{k+1} = P(x'_k + step d(grad CE))

    Madry et al. 2018, https://arxiv.org/abs/1706.06083, with a random start. Differs from the authors' code in: the
    network is in eval mode during the search (theirs: `mode="train"`).
    """

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:  # noqa: ARG002
        logits = model(found)
        yield Term(cross_entropy(logits, y, self.label_smoothing), logits, found)
