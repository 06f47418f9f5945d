"""BatchNorm over the images of all processes, on any device (torch's own supports no CPU)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atent.parallel.team import current_team


@contextmanager
def synchronized(model: nn.Module) -> Iterator[None]:
    """In the block, BatchNorm layers in train mode use mean and variance of the images of all processes.

    Layers with a `forward` of their own are left as they are. Every process must make the same passes in train mode,
    each with a message per layer, forward and backward.
    """
    layers = [one for one in model.modules() if type(one).forward is _BatchNorm.forward]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # not another layer, so that the weights keep their names
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Sum(torch.autograd.Function):
    """The sum over all processes. Each contributes to the loss of every other, so the gradient is such a sum too."""

    @staticmethod
    def forward(_: Any, mine: Tensor) -> Tensor:
        return current_team().add(mine.clone())

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return current_team().add(gradient.contiguous().clone())


def _sum(mine: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(mine)  # type: ignore[no-untyped-call]
    return total


def _forward(layer: Any, x: Tensor) -> Any:
    if not layer.training:
        return _BatchNorm.forward(layer, x)
    layer._check_input_dim(x)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    dims, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
    mine = wide.new_tensor([wide.numel() / wide.shape[1]])
    sums = _sum(torch.cat([wide.sum(dims), mine]))
    mean, count = sums[:-1] / sums[-1], sums[-1].detach()
    centered = wide - mean.view(shape)
    variance = _sum(centered.square().sum(dims)) / count
    if layer.running_mean is not None:
        _follow(layer, mean.detach(), (variance * count / (count - 1)).detach())
    scale = (variance + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight
    found = centered * scale.view(shape)
    if layer.bias is not None:
        found = found + layer.bias.view(shape)
    return found.to(x.dtype)


@torch.no_grad()
def _follow(layer: Any, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics as torch does."""
    layer.num_batches_tracked.add_(1)
    rate = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), rate)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), rate)
