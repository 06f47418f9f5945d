"""The moving average of a network's weights."""

from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights, and of BatchNorm's statistics with them.

    The decay climbs with the number t of updates, min(decay, (1 + t) / (10 + t)): a constant one would keep the initial
    statistics, mean 0 and variance 1, for several 1 / (1 - decay) batches beside weights that have long moved on.
    Buffers of whole numbers are those of the network.
    """

    def follow(averages: Any, values: Any, updates: Tensor | int) -> None:
        if not averages[0].is_floating_point():  # torch groups by type; whole numbers have no mean of their own
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
            return
        now = min(decay, (1 + float(updates)) / (10 + float(updates)))
        get_ema_multi_avg_fn(now)(averages, values, updates)

    return AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
