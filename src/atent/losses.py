"""Losses, one number per example, shape (n,). Whoever needs a scalar reduces."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["cross-entropy", "margin"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]."""
    return functional.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max over wrong classes of their logit, minus the true one: positive where the example is misclassified."""
    true = logits.gather(1, y[:, None]).squeeze(1)
    wrong = logits.scatter(1, y[:, None], float("-inf"))
    return wrong.amax(1) - true


LOSSES: dict[LossName, Loss] = {"cross-entropy": cross_entropy, "margin": margin}
