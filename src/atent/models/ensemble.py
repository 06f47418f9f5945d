"""Several networks that answer together."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from atent.network import unwrap_logits

MOST_MEMBERS = 64


class Ensemble(nn.Module):
    """Networks whose log-probabilities are averaged: the geometric mean of their softmax outputs, not normalized.

    Members that were trained with other seeds make other mistakes, so they can be more robust together than each alone
    (docs/ensemble.md has a measurement). A pass costs as much as the passes of all members. The average is taken in
    float32 also where the passes are in half precision.
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        for member in self.members:
            unwrap_logits(member)

    def forward(self, x: Tensor) -> Tensor:
        logits = [member(x) for member in self.members]
        full = [one.to(torch.promote_types(one.dtype, torch.float32)) for one in logits]
        return torch.stack([one.log_softmax(1) for one in full]).mean(0)


def members_of(name: str) -> tuple[int, str] | None:
    """The number and the kind of the members of an ensemble with this name, `4*small-cnn`; None for other names."""
    found = re.fullmatch(r"([1-9][0-9]?)\*(.+)", name, re.ASCII)
    return (int(found[1]), found[2]) if found else None
