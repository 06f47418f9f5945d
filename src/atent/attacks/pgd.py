"""Projected gradient descent, the standard attack."""

from functools import partial

import torch
from torch import Tensor, nn

from atent.ascent import Chain, ascend
from atent.attacks.early_stopping import until_broken
from atent.attacks.protocols import named
from atent.leak import leaky_gradients
from atent.losses import LOSSES, LossName
from atent.methods import Count, Fraction, Size, Start, Tolerance, method
from atent.threat import Threat


@method
class Pgd:
    """PGD: `steps` projected ascent steps on the loss from each of `restarts` random starts.

        x'_{k+1} = P(x'_k + step d(grad loss)),   step = reach * eps / steps unless given

    Madry et al. 2018, https://arxiv.org/abs/1706.06083. PGD-N in our tables: 2.5 eps / N a step, one uniform start,
    cross-entropy, network in eval mode; PGD-NxR: an example is robust only if all R restarts fail on it.
    Differs from the authors' code in: the search of an example ends at its first misclassified point.

    With a `decay` below 1 the steps shrink, the last is `decay` times the first. With a `leak`, the derivative of ReLU
    where it is off, the search also moves pixels whose gradient is 0 (`leaky_gradients`).

    This is an attack, not the inner search of a training: misclassified images are returned unchanged, and a search
    stops early. A defense searches with `worst_point`.
    """

    steps: Count = 40
    restarts: Count = 1
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"
    loss: LossName = "cross-entropy"
    decay: Fraction = 1.0
    leak: Tolerance = 0.0

    @property
    def title(self) -> str:
        times = f"x{self.restarts}" if self.restarts > 1 else ""
        return named(f"PGD-{self.steps}{times}", self, said=("steps", "restarts"))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        chain: Chain = {"step": self.step, "reach": self.reach, "decay": self.decay, "start": self.start}
        search = partial(ascend, steps=self.steps, **chain)
        with leaky_gradients(self.leak):
            return until_broken(model, x, y, threat, generator, search, loss=LOSSES[self.loss], restarts=self.restarts)
