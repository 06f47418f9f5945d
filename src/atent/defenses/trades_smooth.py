"""TRADES on noisy images, for a smoothed network."""

from dataclasses import KW_ONLY

import torch
from torch import Generator, Tensor, nn

from atent.defenses.protocols import Terms
from atent.defenses.trades import Trades
from atent.methods import Size, method
from atent.smoothing.noise import normal_noise
from atent.threat import Threat


@method
class TradesSmooth(Trades):
    """TRADES around x + N(0, sigma^2 I) instead of x; points may leave the pixel box.

        loss = CE(f(z), y) + beta KL(p(z) || p(z')),   z = x + N(0, sigma^2 I),   z' ascends that KL from near z

    Blum et al. 2020, https://arxiv.org/abs/2002.03517, smooth networks trained with TRADES. The ATENT paper compares
    with this method in its Tables 4 and 5. The fields are those of `trades`.
    """

    _: KW_ONLY
    sigma: Size = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pull_rate:
            raise ValueError(f"pull_rate {self.pull_rate:g} is not defined: radii from x include the noise of sigma")

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:
        noisy = x + normal_noise(x, 1, self.sigma, generator)[0]
        return torch.stack([noisy, super().find(model, noisy, y, threat.unboxed(), generator)])

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:  # noqa: ARG002
        noisy, end = found
        yield from super().loss_at(model, noisy, y, end)
