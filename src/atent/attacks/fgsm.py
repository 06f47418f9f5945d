"""The fast gradient sign method: one step to the border of the ball."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from atent.ascent import ascend
from atent.attacks.early_stopping import until_broken
from atent.attacks.protocols import named
from atent.losses import LOSSES, LossName
from atent.methods import method
from atent.threat import Threat


@method
class Fgsm:
    """FGSM: one step of eps from x. A weak attack; if it is stronger than PGD, the gradients are masked.

        x' = x + eps d(grad loss),   d the sign (linf) or the unit gradient (l2)

    Goodfellow et al. 2015, https://arxiv.org/abs/1412.6572. Differs from the paper in: l2 threats, pixels stay in
    the box, and the loss may be another one.
    """

    loss: LossName = "cross-entropy"
    single_step: ClassVar[bool] = True

    @property
    def title(self) -> str:
        return named("FGSM", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        search = partial(ascend, steps=1, reach=1, start="center")
        return until_broken(model, x, y, threat, generator, search, loss=LOSSES[self.loss])
