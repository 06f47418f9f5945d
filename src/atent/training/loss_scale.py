"""The factor of the loss in float16, which keeps gradients of weights from becoming 0."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")
_DOUBLED_AFTER = 2000  # gradients that were finite


class NotFiniteError(ArithmeticError):
    """The loss or its gradient is not finite."""


@dataclass
class LossScale:
    """The loss is multiplied by `value` and the gradient divided by it.

    It is halved, and the gradient computed again, when the gradient is not finite; it is doubled after 2,000 finite
    ones. Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740. Differs from the paper in: no batch is skipped.
    The network's buffers are then as before the first try; the memory of a defense (MMA) has what that try stored.
    """

    value: float = 2.0**16
    good: int = 0

    def finite(self, model: nn.Module, gradient: Callable[[], T]) -> T:
        """What `gradient` returns, with the first scale at which it raises no `NotFiniteError`."""
        before = [buffer.clone() for buffer in model.buffers()]
        while True:
            try:
                found = gradient()
            except NotFiniteError:
                if not self.shrink():
                    raise
                for buffer, kept in zip(model.buffers(), before, strict=True):
                    buffer.copy_(kept)
            else:
                self.grow()
                return found

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
