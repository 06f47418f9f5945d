"""Losses: one number per example, shape (n,). The caller reduces them where it needs a scalar."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from atent.errors import UserError

Loss = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["cross-entropy", "margin", "dlr"]


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-log softmax(logits)[y]; with label smoothing s, (1 - s) of that plus s times the mean of it over all classes.

    Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, Section 7.
    """
    return functional.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)


def soft_maximum(losses: Tensor, scale: float) -> Tensor:
    """scale log mean exp(losses / scale) over the examples: their mean as scale -> infinity, their maximum as it -> 0.

    Its gradient weighs the examples by softmax(losses / scale), the Gibbs law over them.
    """
    return scale * ((losses / scale).logsumexp(0) - math.log(len(losses)))


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """The largest logit of the wrong classes minus the true class's: positive where the example is misclassified."""
    true = logits.gather(1, y[:, None]).squeeze(1)
    wrong = logits.scatter(1, y[:, None], float("-inf"))
    return wrong.amax(1) - true


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin divided by the difference of the largest and third largest logit: independent of the logits' scale.

    Croce & Hein 2020, https://arxiv.org/abs/2003.01690, Eq. 6 (the difference of logits ratio).
    """
    if logits.shape[1] < 3:
        raise UserError(f"loss 'dlr' divides by the third largest logit; the network has {logits.shape[1]} classes")
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


def targeted_dlr(logits: Tensor, y: Tensor, aims: Tensor) -> Tensor:
    """The logit of a class aimed at minus the true class's, over z_1 - (z_3 + z_4) / 2, z_k the k-th largest logit.

    Croce & Hein 2020, https://arxiv.org/abs/2003.01690, Eq. 7.
    """
    if logits.shape[1] < 4:
        raise UserError(
            f"loss 'dlr-targeted' divides by the fourth largest logit; the network has {logits.shape[1]} classes"
        )
    true, aim = logits.gather(1, torch.stack([y, aims], 1)).unbind(1)
    top = logits.topk(4, dim=1).values
    return (aim - true) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2).clamp_min(1e-12)


def soft_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The margin with a soft maximum, log sum over wrong classes of exp(logit), minus the true logit.

    Ding et al. 2020, https://arxiv.org/abs/1812.02637 (the soft logit margin). It is never below the margin, so where
    it is negative the example is correctly classified.
    """
    true = logits.gather(1, y[:, None]).squeeze(1)
    return logits.scatter(1, y[:, None], float("-inf")).logsumexp(1) - true


def divergence(logits: Tensor, of: Tensor) -> Tensor:
    """KL(p || q), p = softmax(of) and q = softmax(logits); it and its gradients are finite for finite logits."""
    log_p, log_q = of.log_softmax(1), logits.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def boosted_cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-log p_y - log(1 - p_k), k the most probable wrong class; label smoothing is that of the first part.

    Wang et al. 2020 (MART), https://openreview.net/forum?id=rklOg6EFwS. 1 - p_k is computed as the sum of the other
    probabilities, in logarithms: the difference would be 0 where p_k rounds to 1.
    """
    log_p = logits.log_softmax(1)
    runner_up = logits.scatter(1, y[:, None], float("-inf")).argmax(1, keepdim=True)
    log_others = log_p.scatter(1, runner_up, float("-inf")).logsumexp(1)
    true = log_p.gather(1, y[:, None]).squeeze(1)
    if label_smoothing:
        true = (1 - label_smoothing) * true + label_smoothing * log_p.mean(1)
    return -true - log_others


LOSSES: dict[LossName, Loss] = {"cross-entropy": cross_entropy, "margin": margin, "dlr": dlr}
