"""Pixels stay in [0,1] everywhere outside the network; standardization is its first layer."""

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
    """A network behind a layer that standardizes its images. It reads weights of our first versions, too.

    Those called the two parts `0` and `1`.
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
    """How the names of tensors begin in the layer that standardizes and in the network behind it."""

    standardize: str
    network: str


NEW, OLD = Parts("standardize.", "network."), Parts("0.", "1.")


def parts_of(model: nn.Module) -> Parts | None:
    """The names of the two parts if the model is ours, or a user's nn.Sequential(Standardize(...), network)."""
    if isinstance(model, Standardized):
        return NEW
    sequence = isinstance(model, nn.Sequential) and len(model) == 2 and isinstance(model[0], Standardize)
    return OLD if sequence else None


def rename_parts(tensors: Mapping[str, Tensor], to: Parts, prefix: str = "") -> dict[str, Tensor]:
    """The same tensors under the other names, if they are those of a standardized network behind this prefix."""
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
