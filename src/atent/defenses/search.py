"""A defense that searches has two parts: where a point is sought, and what is minimized there."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial

from torch import Generator, Tensor, nn

from atent.ascent import Chain, solved_pull
from atent.defenses.protocols import Terms
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import Loss, cross_entropy
from atent.methods import Count, Direction, Mode, Projection, Pull, Scale, Size, Start, method
from atent.threat import Threat


@method
class Search(ABC):
    """The fields of the search, the same for every defense that searches; its own part is the loss, `loss_at`.

    They are the settings of `ascend`, and the network's `mode` during the search. The defaults are PGD.
    """

    _: KW_ONLY
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"
    start_scale: Scale = 1.0
    direction: Direction = "steepest"
    pull: Pull = 0.0
    project: Projection = "every"
    temperature: Scale = 0.0
    mode: Mode = "eval"

    def check_threat(self, threat: Threat) -> None:
        """Refuse a threat for which `pull="auto"` has no solution."""
        solved_pull(self.pull, threat, self.steps, self.step, self.reach)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat) as threat:
            yield from self.loss_at(model, x, y, self.find(model, x, y, threat, generator))

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:
        """The points at which `loss_at` evaluates the loss; here the last point of ascent on the cross-entropy."""
        return self.climb(model, x, y, threat, generator)

    @abstractmethod
    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:
        """The terms of the loss at the points that `find` returned; calling it again evaluates the same points."""

    def climb(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        generator: Generator,
        loss: Loss = cross_entropy,
        seen: Callable[[Tensor], Tensor] = lambda point: point,
    ) -> Tensor:
        """`worst_point` with these settings."""
        found = partial(worst_point, model, x, y, threat, generator, loss=loss, seen=seen)
        return found(steps=self.steps, mode=self.mode, **self.chain())

    def chain(self) -> Chain:
        """The settings of `ascend`, without `steps`."""
        return {
            "step": self.step,
            "reach": self.reach,
            "start": self.start,
            "start_scale": self.start_scale,
            "direction": self.direction,
            "pull": self.pull,
            "project": self.project,
            "temperature": self.temperature,
        }
