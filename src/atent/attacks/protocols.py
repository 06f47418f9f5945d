"""How an attack is called, and what all attacks share."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from atent.errors import UserError
from atent.inputs import checked
from atent.randomness import spawn
from atent.threat import Threat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Attack(Protocol):
    """Searches for a misclassified image inside the threat around each x; the model is unchanged afterwards.

    It may have a `title`, the name shown in tables.
    """

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return x_adv, one point of the threat for each x."""
        ...


@runtime_checkable
class MinimalAttack(Attack, Protocol):
    """An attack that searches for the closest misclassified image, at any radius."""

    def nearest(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return the closest misclassified point found, in the threat's norm and inside the box; x if there is none."""
        ...


@runtime_checkable
class PerImage(Attack, Protocol):
    """An attack whose outcome for an image does not depend on the other images of the batch, but for rounding."""

    def each(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Return x_adv; the draws for each image come from its own generator."""
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
        """Raise a UserError if the attack is not defined for this network and threat."""
        ...


def attack_each(
    attack: PerImage, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator
) -> Tensor:
    """The call of an attack with a generator per image: they are seeded by draws of the one given."""
    with checked(model, x, y, threat) as threat:
        return attack.each(model, x, y, threat, spawn(generator, len(x)))


def title_of(attack: object, otherwise: str = "") -> str:
    """The name shown in tables: the `title`, or `label` (the name before 0.2), or `otherwise`, or the class name."""
    for key in ("title", "label"):
        if found := getattr(attack, key, None):
            return str(found)
    return otherwise or type(attack).__name__


def named(short: str, attack: "DataclassInstance", said: tuple[str, ...] = ()) -> str:
    """A title: the short name, then every field that is not in `said` and not at its default."""
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
