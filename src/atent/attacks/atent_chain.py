"""ATENT's Langevin chain used as an attack (paper, Table 6)."""

import torch
from torch import Tensor, nn

from atent.ascent import ascend, last
from atent.attacks.protocol import named, until_broken
from atent.fields import Count, Direction, Projection, Pull, Scale, Size, Start, method
from atent.losses import cross_entropy
from atent.threat import Threat


@method
class AtentChain:
    """The chain of the `atent` defense, its last point projected to the threat.

        x'_{k+1} = x'_k + step (d(grad loss) + pull (x - x'_k)) + sqrt(2 step) noise N(0, I)

    Jagatap et al. 2021, Table 6. Differs from the paper in: whatever leaves the ball is projected before it counts,
    and the chain may be restarted.
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
    def label(self) -> str:
        times = f"x{self.restarts}" if self.restarts > 1 else ""
        return named(f"ATENT-{self.steps}{times}", self, said=("steps", "restarts"))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        def attempt(x: Tensor, y: Tensor) -> Tensor:
            chain = ascend(
                lambda point: cross_entropy(model(point), y),
                x,
                threat,
                steps=self.steps,
                step=self.step,
                reach=self.reach,
                start=self.start,
                noise=self.noise,
                pull=self.pull,
                direction=self.direction,
                project=self.project,
                generator=generator,
            )
            return threat.project(last(chain), x)

        return until_broken(model, x, y, self.restarts, attempt)
