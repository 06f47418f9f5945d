"""Several networks that answer together."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOST_MEMBERS = 64


class Ensemble(nn.Module):
    """Networks whose log-probabilities are averaged: the geometric mean of their softmax outputs.

    What one member answers with little confidence, others can correct, so networks that are trained with other seeds
    are together more accurate than each, and more robust. A pass costs as much as the passes of all members.
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x).log_softmax(1) for member in self.members]).mean(0)


def in_ensemble(name: str) -> tuple[int, str] | None:
    """The number and the kind of the members of an ensemble with this name, `4*small-cnn`; None for other names."""
    count, _, member = name.partition("*")
    return (int(count), member) if member and count.isdecimal() else None
