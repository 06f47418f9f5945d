"""PGD against a smoothed network."""

from functools import partial

import torch
from torch import Tensor, nn

from atent.ascent import ascend
from atent.attacks.protocols import named
from atent.errors import UserError
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Count, Size, Start, method
from atent.network import borrowed
from atent.progress import detail
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.smoothing.smoothed import Smoothed
from atent.threat import Threat


@method
class SmoothPgd:
    """PGD on the loss of a `Smoothed` network, with its sigma and its number of draws.

        x'_{k+1} = P(x'_k + step d(grad -log( (1/m) sum_i softmax(f(x'_k + d_i))_y )))

    with the same m draws d_i of the noise at every step. Every image is attacked, also where one prediction is wrong
    already: that of the next draws may be right. Salman et al. 2019, https://arxiv.org/abs/1906.04584.
    """

    steps: Count = 20
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"

    @property
    def title(self) -> str:
        return named(f"SmoothPGD-{self.steps}", self, said=("steps",))

    def check(self, model: nn.Module, threat: Threat) -> None:  # noqa: ARG002
        _smoothed(model)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        with checked(_smoothed(model).network, x, y, threat) as threat, borrowed(model):
            return self.search_all(model, x, y, threat, generator)

    def search_all(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        smoothed = _smoothed(model)
        noise = normal_noise(x, smoothed.draws, smoothed.sigma, generator)

        def objective(point: Tensor) -> Tensor:
            logits = smoothed.network(noisy_copies(point, noise))
            return cross_entropy(log_mean(logits, smoothed.draws), y)

        climb = partial(ascend, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
        point = x
        for step, point in enumerate(climb(objective, x, threat, generator=generator), 1):  # noqa: B007 (the last)
            detail(f"step {step}/{self.steps}")
        return point


def _smoothed(model: nn.Module) -> Smoothed:
    if not isinstance(model, Smoothed):
        raise UserError(
            "attack smooth-pgd with a network that is not smoothed; allowed: smoothed ones (--smooth SIGMA, in a "
            "recipe smooth = SIGMA, in Python Smoothed(network, SIGMA))"
        )
    return model
