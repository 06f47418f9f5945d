"""What an attack is, how paths and restarts are counted, and what a nearest point is worth in a threat."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from atent.ascent import Objective, Points
from atent.borrow import borrowed
from atent.errors import UserError
from atent.inputs import checked
from atent.losses import Loss, margin
from atent.passes import answers, repeats_itself
from atent.threat import Threat, over_pixels

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Search = Callable[[Objective, Tensor], Points]


class Attack(Protocol):
    """Looks for a misclassified image inside the threat around each x; the model comes back as it was."""

    @property
    def label(self) -> str:
        """How tables call it."""
        ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return x_adv, one point of the threat for each x."""
        ...


class MinimalAttack(Attack, Protocol):
    """An attack that looks for the closest misclassified image, whatever the radius."""

    def nearest(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """Return the misclassified point of the box found closest to x in the threat's norm, or x if none was."""
        ...


def named(short: str, attack: "DataclassInstance", said: tuple[str, ...] = ()) -> str:
    """A label: the short name, then every field that is neither in it nor at its default."""
    changed = [
        f"{field.name} {getattr(attack, field.name)}"
        for field in dataclasses.fields(attack)
        if field.name not in said and getattr(attack, field.name) != field.default
    ]
    return f"{short} ({', '.join(changed)})" if changed else short


def until_broken(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, *, loss: Loss, restarts: int, search: Search
) -> Tensor:
    """Repeat `search` on the examples that are still right; an example is robust only if every restart fails.

    Examples that are wrong from the start come back as they are: an attack cannot repair them. On a random network,
    where a single answer says little, every example is attacked to the end of each path.
    """
    with checked(model, x, y, threat) as threat, borrowed(model):
        x_adv = x.clone()
        logits = answers(model, x)
        steady = repeats_itself(model, x, logits)
        left = ((logits.argmax(1) == y) | (not steady)).nonzero().squeeze(1)
        for restarts_after in reversed(range(restarts)):
            if len(left) == 0:
                break
            x_adv[left], unbroken = climb(model, x[left], y[left], threat, loss, search, stop_early=steady)
            left = left[unbroken]
            if restarts_after and len(left) > 0:  # whoever called judges the very last points
                left = left[still_right(model, x_adv[left], y[left])]
    return x_adv


def climb(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, loss: Loss, search: Search, *, stop_early: bool
) -> tuple[Tensor, Tensor]:
    """Search, leaving out each example as soon as it is broken; its point, and which examples reached the end.

    The pass that gives the gradient at a point also says how the point is classified, so a broken one costs nothing
    to notice. It counts if it lies inside the threat, as all do on a path that is projected every step.
    """
    x_adv = x.clone()
    left = torch.arange(len(x), device=x.device)
    previous, wrong = x, torch.zeros_like(y, dtype=torch.bool)

    def objective(point: Tensor) -> Tensor:
        nonlocal previous, wrong
        logits = model(point)
        previous, wrong = point.detach(), logits.detach().argmax(1) != y
        return loss(logits, y)

    points = search(objective, x)
    point = next(points)
    with suppress(StopIteration):
        while True:
            keep = None
            if stop_early and wrong.any() and (broken := wrong & within(threat, previous, x)).any():
                x_adv[left[broken]], keep = previous[broken], ~broken
                left, x, y, point = left[keep], x[keep], y[keep], point[keep]
                if len(left) == 0:
                    break
            point = points.send(keep)
    x_adv[left] = threat.project(point, x)  # a chain need not end inside
    return x_adv, left


def nearest_within(
    attack: MinimalAttack, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
) -> Tensor:
    """The nearest misclassified point where it lies inside the threat, else x."""
    threat = Threat.parse(threat)
    found = attack.nearest(model, x, y, threat, generator)
    return torch.where(over_pixels(within(threat, found, x), x), found, x)


@torch.no_grad()
def pull_back(model: nn.Module, x: Tensor, y: Tensor, found: Tensor, confidence: float = 0.0) -> Tensor:
    """Misclassified points moved towards x as long as they stay so, by ten halvings of the way.

    Their margin stays above `confidence`, and above rounding (1e-6 of the largest logit): in a batch of another size
    the same point may get slightly other logits.
    """
    if len(x) == 0:
        return found
    near, far = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)  # right and wrong, from x
    for _ in range(10):
        middle = (near + far) / 2
        logits = model(x + over_pixels(middle, x) * (found - x))
        wrong = margin(logits, y) > confidence + 1e-6 * logits.abs().amax(1)
        near, far = torch.where(wrong, near, middle), torch.where(wrong, middle, far)
    return torch.where(over_pixels(far < 1, x), x + over_pixels(far, x) * (found - x), found)


def only_norm(norm: str, threat: Threat, attack: str) -> None:
    """Refuse a threat in another norm than the attack's."""
    if threat.norm != norm:
        raise UserError(f"attack {attack} with threat {threat}; allowed: {norm} threats")


def within(threat: Threat, points: Tensor, x: Tensor) -> Tensor:
    """Which points lie inside the threat around x, shape (n,), but for rounding: half of what the harness allows."""
    boxed = ((points - threat.clamp(points)).abs() <= 5e-7).flatten(1).all(1)
    return boxed & (threat.size(points - x) <= threat.eps + 5e-7 * max(1.0, threat.eps))


@torch.no_grad()
def still_right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which examples are classified as they should be, shape (n,)."""
    right: Tensor = model(x).argmax(1) == y
    return right
