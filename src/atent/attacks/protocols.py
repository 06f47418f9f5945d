"""What an attack is, and what all of them share."""

import dataclasses
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from atent.errors import UserError
from atent.threat import Threat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Attack(Protocol):
    """Looks for a misclassified image inside the threat around each x; the model comes back as it was.

    It may have a `title`, the name that tables show.
    """

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return x_adv, one point of the threat for each x."""
        ...


@runtime_checkable
class MinimalAttack(Attack, Protocol):
    """An attack that looks for the closest misclassified image, whatever the radius."""

    def nearest(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return the misclassified point of the box found closest to x in the threat's norm, or x if none was."""
        ...


@runtime_checkable
class Thorough(Attack, Protocol):
    """An attack that can also move images which are misclassified already, to points where they are so more clearly."""

    def search_all(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return x_adv, one point of the threat for each x."""
        ...


@runtime_checkable
class Selective(Protocol):
    """An attack that is not defined for every network and threat."""

    def check(self, model: nn.Module, threat: Threat) -> None:
        """Raise a UserError if it is not defined for these."""
        ...


def title_of(attack: object, otherwise: str = "") -> str:
    """The name that tables show: the attack's `title`, or its `label` as that was called before 0.2, or the other."""
    for key in ("title", "label"):
        if found := getattr(attack, key, None):
            return str(found)
    return otherwise or type(attack).__name__


def named(short: str, attack: "DataclassInstance", said: tuple[str, ...] = ()) -> str:
    """A title: the short name, then every field that is neither in it nor at its default."""
    changed = [
        f"{field.name} {getattr(attack, field.name)}"
        for field in dataclasses.fields(attack)
        if field.name not in said and getattr(attack, field.name) != field.default
    ]
    return f"{short} ({', '.join(changed)})" if changed else short


def only_norm(norm: str, threat: Threat, attack: str) -> None:
    """Refuse a threat in another norm than the attack's."""
    if threat.norm != norm:
        raise UserError(f"attack {attack} with threat {threat}; allowed: {norm} threats")


def within(threat: Threat, points: Tensor, x: Tensor) -> Tensor:
    """Which points lie inside the threat around x, shape (n,), but for rounding: half of what the harness allows."""
    boxed = ((points - threat.clamp(points)).abs() <= 5e-7).flatten(1).all(1)
    return boxed & (threat.size(points - x) <= threat.eps + 5e-7 * max(1.0, threat.eps))
