"""What an attack is, and how restarts are counted."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from atent.borrow import borrowed
from atent.threat import Threat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Attack(Protocol):
    """Looks for a misclassified image inside the threat around each x; the model comes back as it was."""

    @property
    def label(self) -> str:
        """How tables call it."""
        ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return x_adv, one point of the threat for each x."""
        ...


def named(short: str, attack: "DataclassInstance", said: tuple[str, ...]) -> str:
    """A label: the short name, then every field that is neither in it nor at its default."""
    changed = [
        f"{field.name} {getattr(attack, field.name)}"
        for field in dataclasses.fields(attack)
        if field.name not in said and getattr(attack, field.name) != field.default
    ]
    return f"{short} ({', '.join(changed)})" if changed else short


def until_broken(
    model: nn.Module, x: Tensor, y: Tensor, restarts: int, attempt: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Repeat `attempt` on the examples that are still right; an example is robust only if every restart fails.

    Examples that are wrong from the start come back as they are: an attack cannot repair them.
    """
    x_adv = x.clone()
    with borrowed(model):
        left = _still_right(model, x, y, torch.arange(len(x), device=x.device))
        for _ in range(restarts):
            if len(left) == 0:
                break
            x_adv[left] = attempt(x[left], y[left])
            left = _still_right(model, x_adv, y, left)
    return x_adv


@torch.no_grad()
def _still_right(model: nn.Module, x: Tensor, y: Tensor, among: Tensor) -> Tensor:
    return among[model(x[among]).argmax(1) == y[among]]
