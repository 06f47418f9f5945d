"""Networks and methods of a user, small or broken, that cases name as `campaign.networks:NAME`."""

import sys
from typing import Any

import torch
from torch import nn

from atent.network import Shape


def flat(shape: Shape) -> nn.Module:
    """A linear network: a pass takes microseconds."""
    channels, height, width = shape.image
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, shape.classes))


def folded(shape: Shape) -> nn.Module:
    """A convolution, BatchNorm, dropout and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(shape.image[0], 2, 3, stride=3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.LazyLinear(shape.classes),
    )  # fmt: skip


def raises(shape: Shape) -> nn.Module:
    raise LookupError(f"first line\nsecond line for {shape}")


def exits(shape: Shape) -> nn.Module:
    del shape
    sys.exit("a network that exits")


def returns_text(shape: Shape) -> Any:
    return f"not a network for {shape}"


class Raising:
    """A method that raises when it is made."""

    def __init__(self) -> None:
        raise KeyError("made\nin two lines")

    def __call__(self, model: Any, x: Any, y: Any, threat: Any, generator: Any) -> Any: ...


class Late:
    """A method that raises when it is used."""

    lr = 0.1

    def __call__(self, *given: Any) -> Any:
        raise RuntimeError(f"used with {len(given)} arguments\nin two lines")


class Leaving:
    """A network that ends the process at its first pass."""

    def __init__(self, shape: Shape) -> None:
        del shape

    def __call__(self, *given: Any) -> Any:
        del given
        sys.exit(3)


class Wrong(nn.Module):
    """A network that returns logits of a wrong shape for some batches."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layer = flat(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found[:1] if len(x) > 5 else found


answer = 42
