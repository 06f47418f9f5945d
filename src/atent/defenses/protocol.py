"""What a defense is: it turns a batch into loss terms, and the training step back-propagates each as it comes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

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
