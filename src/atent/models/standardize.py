"""Pixels stay in [0,1] everywhere outside the network; standardization is its first layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x - mean) / std for each channel, as a layer."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
