"""The moving average of a network's weights."""

from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights and of BatchNorm's statistics.

    The decay grows with the number t of updates: min(decay, (1 + t) / (10 + t)). With a constant decay the initial
    statistics, mean 0 and variance 1, would persist for several times 1 / (1 - decay) batches while the weights change.
    Integer buffers are copied from the network.
    """

    def follow(averages: Any, values: Any, updates: Tensor | int) -> None:
        if not averages[0].is_floating_point():  # torch groups tensors by type; integers are not averaged
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
            return
        now = min(decay, (1 + float(updates)) / (10 + float(updates)))
        get_ema_multi_avg_fn(now)(averages, values, updates)

    return AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
