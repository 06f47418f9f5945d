"""TRADES on noisy images, for a smoothed network."""

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Terms
from atent.defenses.trades import Trades
from atent.inputs import checked
from atent.methods import Count, Scale, Size, Start, method
from atent.smoothing.noise import normal_noise
from atent.threat import Threat


@method
class TradesSmooth:
    """TRADES around x + N(0, sigma^2 I) instead of x; points may leave the pixel box.

        loss = CE(f(z), y) + beta KL(p(z) || p(z')),   z = x + N(0, sigma^2 I),   z' ascends that KL from near z

    Blum et al. 2020, https://arxiv.org/abs/2002.03517, smooth networks trained with TRADES. The ATENT paper compares
    with this method in its Tables 4 and 5. The fields are those of `trades`.
    """

    beta: Scale = 6.0
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.0
    start: Start = "near"
    sigma: Size = 0.25

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        trades = Trades(self.beta, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
        with checked(model, x, y, threat) as threat:
            noisy = x + normal_noise(x, 1, self.sigma, generator)[0]
            yield from trades(model, noisy, y, threat.unboxed(), generator)
