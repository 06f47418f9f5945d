"""Adversarial training with a single step."""

from typing import ClassVar

from torch import Generator, Tensor, nn

from atent.defenses.pgd_at import PgdAt
from atent.defenses.protocols import Terms
from atent.methods import Mode, Size, Start, method
from atent.threat import Threat


@method
class Fast:
    """Fast adversarial training: one large step from a random start.

        loss = CE(f(x'), y),   x' = P(x'_0 + reach eps d(grad CE)),   x'_0 uniform in the ball

    Wong et al. 2020, https://arxiv.org/abs/2001.03994. It can collapse within an epoch ("catastrophic overfitting"):
    then a single step fails on every image, but PGD breaks all of them. Training detects this on the held-out images,
    stops and keeps the best weights. Differs from the authors' code in: `mode` (theirs is "train").
    """

    reach: Size = 1.25
    start: Start = "uniform"
    mode: Mode = "eval"
    single_step: ClassVar[bool] = True

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        return PgdAt(steps=1, reach=self.reach, start=self.start, mode=self.mode)(model, x, y, threat, generator)
