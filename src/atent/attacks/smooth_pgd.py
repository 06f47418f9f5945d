"""PGD against a smoothed network."""

import torch
from torch import Tensor, nn

from atent.ascent import ascend, last
from atent.attacks.early_stopping import still_right
from atent.attacks.protocols import named
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Count, Size, Start, method
from atent.network import borrowed
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.smoothing.smoothed import Smoothed
from atent.threat import Threat


@method
class SmoothPgd:
    """PGD on the smoothed loss: the network is smoothed with sigma (unless it is already), and judged so.

        x'_{k+1} = P(x'_k + step d(grad -log( (1/m) sum_i softmax(f(x'_k + d_i))_y )))

    with the same m = `draws` draws d_i of the noise at every step. Salman et al. 2019, https://arxiv.org/abs/1906.04584.
    """

    sigma: Size = 0.25
    draws: Count = 16
    steps: Count = 20
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"

    @property
    def label(self) -> str:
        return named(f"SmoothPGD-{self.steps}", self, said=("steps",))

    @property
    def judged_as(self) -> str:
        """How tables call the network that it is judged by."""
        return f"smoothed {self.sigma:g}"

    def judged(self, model: nn.Module) -> Smoothed:
        """The network that is attacked: the smoothed one."""
        return model if isinstance(model, Smoothed) else Smoothed(model, self.sigma, self.draws)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        smoothed = self.judged(model)
        with checked(model, x, y, threat) as threat, borrowed(smoothed):
            x_adv = x.clone()
            right = still_right(smoothed, x, y)
            if right.any():
                x, y = x[right], y[right]
                noise = normal_noise(x, self.draws, smoothed.sigma, generator)

                def objective(point: Tensor) -> Tensor:
                    logits = smoothed.network(noisy_copies(point, noise))
                    return cross_entropy(log_mean(logits, self.draws), y)

                points = ascend(
                    objective,
                    x,
                    threat,
                    steps=self.steps,
                    step=self.step,
                    reach=self.reach,
                    start=self.start,
                    generator=generator,
                )
                x_adv[right] = last(points)
        return x_adv
