"""Adversarial training on the last point of PGD."""

from functools import partial

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Count, Mode, Size, Start, method
from atent.threat import Threat


@method
class PgdAt:
    """PGD adversarial training: cross-entropy at the worst point that PGD finds.

        loss = CE(f(x'_K), y),   x'_{k+1} = P(x'_k + step d(grad CE))

    Madry et al. 2018, https://arxiv.org/abs/1706.06083, with a random start. Differs from the authors' code in: the
    network is in eval mode during the search (theirs: `mode="train"`).
    """

    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"
    mode: Mode = "eval"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat) as threat:
            search = partial(worst_point, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
            x_adv = search(model, x, y, threat, generator, mode=self.mode)
            logits = model(x_adv)
            yield Term(cross_entropy(logits, y), logits, x_adv)
