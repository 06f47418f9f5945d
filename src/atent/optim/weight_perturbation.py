"""Adversarial weight perturbation (AWP): the gradient is taken at weights that were moved to raise the loss."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def perturbed(model: nn.Module, size: float) -> Iterator[None]:
    """Each layer's weights moved up the gradient in their `grad`; afterwards they are what they were, bit for bit.

        w + v,   v = size |w| g / |g|   of each parameter with two dimensions or more

    Wu et al. 2020, https://arxiv.org/abs/2004.05884. Biases and normalization stay, as in the authors' code.
    """
    layers = [p for p in model.parameters() if p.requires_grad and p.grad is not None and p.dim() > 1]
    kept = [layer.detach().clone() for layer in layers]
    try:
        with torch.no_grad():
            for layer in layers:
                assert layer.grad is not None
                layer.add_(layer.grad * (size * layer.norm() / layer.grad.norm().clamp_min(1e-30)))
        yield
    finally:
        with torch.no_grad():
            for layer, before in zip(layers, kept, strict=True):
                layer.copy_(before)


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Passes in the block do not move BatchNorm's statistics, or any other buffer, for good."""
    kept = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)
