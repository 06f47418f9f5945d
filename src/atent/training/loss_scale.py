"""The factor of the loss in float16, which keeps gradients of weights from becoming 0."""

from dataclasses import dataclass

import torch
from torch import nn

_DOUBLED_AFTER = 2000  # gradients that were finite


@dataclass
class LossScale:
    """The loss is multiplied by `value` and the gradient divided by it.

    It is halved, and the gradient computed again, when the gradient is not finite; it is doubled after 2,000 finite
    ones. Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740. Differs from the paper in: no batch is skipped.
    """

    value: float = 2.0**16
    good: int = 0

    def divide(self, model: nn.Module) -> None:
        """Divide the gradients of the weights by the scale."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        torch._foreach_div_(gradients, self.value)

    def shrink(self) -> bool:
        """Halve it; False if it is 1 already: then the loss itself is not finite."""
        if self.value <= 1:
            return False
        self.value, self.good = self.value / 2, 0
        return True

    def grow(self) -> None:
        """Count a finite gradient."""
        self.good += 1
        if self.good == _DOUBLED_AFTER:
            self.value, self.good = 2 * self.value, 0
