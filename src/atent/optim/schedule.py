"""The learning rate and eps during training, as functions of the completed fraction."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import Discriminator, Field, Tag

from atent.methods import Count, Scale, Size, imports, method


class Rates(Protocol):
    """What a schedule gives: factors of the learning rate and of eps, by the completed fraction of the training."""

    def rate(self, done: float, epochs: int) -> float: ...

    def eps_share(self, done: float) -> float: ...


@method
class Schedule:
    """Factors of the learning rate and of eps, as functions of the completed fraction `done` of the training.

    constant; step: times `factor` at each of `milestones` (epochs); cosine: to 0; one-cycle: up from 1/25 and down to
    0 along cosines. During the first fraction `warmup` of the training the learning rate rises. Eps rises linearly,
    `eps_warmup` times as long: with full eps at a low learning rate, training on MNIST at linf .3 gets stuck at a
    constant prediction. Its peak is `eps_peak` times the threat's eps: a larger radius in training than in evaluation.
    """

    name: Literal["constant", "step", "cosine", "one-cycle"] = "constant"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    eps_warmup: Scale = 1.6
    eps_peak: Annotated[float, Field(gt=0, le=10)] = 1.0
    milestones: tuple[Count, ...] = ()
    factor: Size = 0.1

    def rate(self, done: float, epochs: int) -> float:
        """The factor of the learning rate, in [0, 1] (above 1 only if `factor` is)."""
        if done < self.warmup:
            climbed = done / self.warmup
            return 0.04 + 0.96 * (_cosine(1 - climbed) if self.name == "one-cycle" else climbed)
        if self.name in ("cosine", "one-cycle"):
            return _cosine((done - self.warmup) / (1 - self.warmup))
        if self.name == "step":
            # The tolerance: rounding of done * epochs must not delay a drop by a batch.
            return self.factor ** sum(done * epochs >= milestone - 1e-9 for milestone in self.milestones)
        return 1.0

    def eps_share(self, done: float) -> float:
        """The factor of the threat's eps."""
        length = self.warmup * self.eps_warmup
        return self.eps_peak * (min(1.0, done / length) if length > 0 else 1.0)


def _whose(table: object) -> str:
    return "users" if isinstance(table, Mapping) and imports(table) else "ours"


# In a recipe: ours, or the table of a user's own, which is not imported when a recipe is read.
AnySchedule = Annotated[
    Annotated[Schedule, Tag("ours")] | Annotated[dict[str, Any], Tag("users")], Discriminator(_whose)
]


def _cosine(way: float) -> float:
    """A half cosine: 1 at way 0, 0 at way 1."""
    return (1 + math.cos(math.pi * way)) / 2
