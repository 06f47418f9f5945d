"""ATENT's Langevin chain used as an attack (paper, Table 6)."""

from functools import partial

import torch
from torch import Tensor, nn

from atent.ascent import ascend, solved_pull
from atent.attacks.early_stopping import until_broken
from atent.attacks.protocols import named
from atent.losses import cross_entropy
from atent.methods import Count, Direction, Projection, Pull, Scale, Size, Start, method
from atent.threat import Threat


@method
class AtentChain:
    """The chain of the `atent` defense. Its last point is projected to the threat; earlier ones count if inside it.

        x'_{k+1} = x'_k + step (d(grad loss) + pull (x - x'_k)) + sqrt(2 step) noise N(0, I)

    Jagatap et al. 2021, Table 6. Differs from the paper in: points outside the ball do not count; the search of an
    example ends at the first misclassified point inside; the chain may be restarted.
    """

    steps: Count = 40
    restarts: Count = 1
    step: Size | None = None
    reach: Size = 2.5
    noise: Scale = 1e-3
    pull: Pull = 0.0
    start: Start = "uniform"
    direction: Direction = "steepest"
    project: Projection = "last"

    @property
    def title(self) -> str:
        times = f"x{self.restarts}" if self.restarts > 1 else ""
        return named(f"ATENT-{self.steps}{times}", self, said=("steps", "restarts"))

    def check_threat(self, threat: Threat) -> None:
        """Refuse a threat for which `pull="auto"` has no solution."""
        solved_pull(self.pull, threat, self.steps, self.step, self.reach)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        noisy = partial(ascend, noise=self.noise, pull=self.pull, direction=self.direction, project=self.project)
        search = partial(noisy, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
        return until_broken(model, x, y, threat, generator, search, loss=cross_entropy, restarts=self.restarts)
