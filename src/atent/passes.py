"""Counting what an attack asks of a network, from outside of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class Passes:
    """Images that went forward, and images whose logits were differentiated."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counted(model: nn.Module) -> Iterator[Passes]:
    """Count the passes through the model until the end of the block; its hooks are then as before."""
    passes = Passes()

    def came_back(gradient: Tensor) -> None:
        passes.backward += len(gradient)

    def went_through(module: nn.Module, arguments: Any, logits: Any) -> None:  # noqa: ARG001 (a hook's)
        if isinstance(logits, Tensor):
            passes.forward += len(logits)
            if logits.requires_grad:
                logits.register_hook(came_back)

    hook = model.register_forward_hook(went_through)
    try:
        yield passes
    finally:
        hook.remove()
