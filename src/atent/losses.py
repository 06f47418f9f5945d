"""Losses, one number per example, shape (n,). Whoever needs a scalar reduces."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

from atent.errors import UserError

Loss = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["cross-entropy", "margin", "dlr"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]."""
    return functional.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max over wrong classes of their logit, minus the true one: positive where the example is misclassified."""
    true = logits.gather(1, y[:, None]).squeeze(1)
    wrong = logits.scatter(1, y[:, None], float("-inf"))
    return wrong.amax(1) - true


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin divided by the difference of the largest and the third largest logit: blind to the logits' scale.

    Croce & Hein 2020, https://arxiv.org/abs/2003.01690, Eq. 6 (the difference of logits ratio).
    """
    if logits.shape[1] < 3:
        raise UserError(f"loss 'dlr' divides by the third largest logit; the network has {logits.shape[1]} classes")
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


LOSSES: dict[LossName, Loss] = {"cross-entropy": cross_entropy, "margin": margin, "dlr": dlr}
