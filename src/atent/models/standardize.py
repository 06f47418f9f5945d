"""Standardization as the first layer of a network: outside of the network pixels are always in [0,1]."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class Standardized(nn.Module):
    """A standardizing layer followed by a network.

    It also loads weights of the first versions, in which the two parts are named `0` and `1`.
    """

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.standardize = Standardize(mean, std)
        self.network = network
        self.register_load_state_dict_pre_hook(_take_old_names)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(self.standardize(x))
        return logits


class Parts(NamedTuple):
    """The prefixes of tensor names in the standardizing layer and in the network after it."""

    standardize: str
    network: str


NEW, OLD = Parts("standardize.", "network."), Parts("0.", "1.")


def parts_of(model: nn.Module) -> Parts | None:
    """The prefixes of a `Standardized` model, or of a user's nn.Sequential(Standardize(...), network); else None."""
    if isinstance(model, Standardized):
        return NEW
    sequence = isinstance(model, nn.Sequential) and len(model) == 2 and isinstance(model[0], Standardize)
    return OLD if sequence else None


def rename_parts(tensors: Mapping[str, Tensor], to: Parts, prefix: str = "") -> dict[str, Tensor]:
    """The same tensors with the prefixes `to`, if they are those of a standardized network under `prefix`."""
    before = OLD if to is NEW else NEW
    if f"{prefix}{before.standardize}mean" not in tensors:
        return dict(tensors)
    renamed = {}
    for name, tensor in tensors.items():
        old, new = next(((a, b) for a, b in zip(before, to, strict=True) if name.startswith(prefix + a)), ("", ""))
        renamed[f"{prefix}{new}{name.removeprefix(prefix + old)}" if old else name] = tensor
    return renamed


def _take_old_names(_: nn.Module, tensors: dict[str, Tensor], prefix: str, *__: Any) -> None:
    renamed = rename_parts(tensors, NEW, prefix)
    tensors.clear()
    tensors.update(renamed)
