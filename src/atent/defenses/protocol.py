"""What a defense is: it turns a batch into loss terms, and the training step back-propagates each as it comes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from atent.threat import Threat


class Term(NamedTuple):
    """A part of the training loss: `loss` per example, shape (n,), and the point and logits it comes from."""

    loss: Tensor
    logits: Tensor
    x_adv: Tensor


class Defense(Protocol):
    """Yields terms whose sum is the loss of the batch; only one term's graph is alive at a time."""

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator
    ) -> Iterator[Term]: ...


@runtime_checkable
class Remembering(Protocol):
    """A defense that keeps a number of each training example from epoch to epoch; it is part of the checkpoint."""

    def new_memory(self, count: int) -> Tensor:
        """What it knows of `count` examples before it has seen any, shape (count,)."""
        ...

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        generator: torch.Generator,
        memory: Tensor | None = None,
    ) -> Iterator[Term]:
        """As any defense; `memory` is that of the batch's examples, to be brought up to date in place."""
        ...
