"""What a defense is, and what those share that search for points.

A defense turns a batch into loss terms, and the training step back-propagates each as it comes. One that searches has
two parts: where a point is sought, and what is minimized there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from atent.ascent import Chain, solved_pull, step_size
from atent.defenses.worst_point import worst_point
from atent.errors import UserError
from atent.inputs import checked
from atent.losses import Loss, cross_entropy
from atent.methods import Count, Direction, Fraction, Mode, Projection, Pull, Scale, Size, Start, Tolerance, method
from atent.threat import Threat


class Term(NamedTuple):
    """A part of the training loss: `loss` per example, shape (n,), with the logits and the point of that loss."""

    loss: Tensor
    logits: Tensor
    x_adv: Tensor


Terms = Iterator[Term]


class Defense(Protocol):
    """Yields terms whose sum is the loss of the batch; only one term's graph is alive at a time."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Terms: ...


@runtime_checkable
class Remembering(Protocol):
    """A defense that stores one number per training example from epoch to epoch; checkpoints contain them."""

    def new_memory(self, count: int) -> Tensor:
        """The initial numbers for `count` examples, shape (count,)."""
        ...

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        generator: torch.Generator,
        memory: Tensor | None = None,
    ) -> Terms:
        """As any defense; `memory` has the numbers of the examples in the batch and is updated in place."""
        ...


@runtime_checkable
class TwoParts(Protocol):
    """A defense whose loss can be evaluated again, with other weights, at the points that its search found."""

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor: ...

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms: ...


@method
class Search(ABC):
    """The fields of the search, the same for every defense that searches; its own part is the loss, `loss_at`.

    They are the settings of `ascend`, and the network's `mode` and `leak` (the derivative of ReLU where it is off)
    during the search. The defaults are PGD.
    `pull_rate` lets a training adapt the pull, batch by batch, until the points end at radius eps (`next_pull`).
    `label_smoothing` belongs to the loss: it is that of the cross-entropy in `loss_at`, and no search uses it.
    """

    _: KW_ONLY
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.5
    decay: Fraction = 1.0
    start: Start = "uniform"
    start_scale: Scale = 1.0
    direction: Direction = "steepest"
    pull: Pull = 0.0
    project: Projection = "every"
    temperature: Scale = 0.0
    mode: Mode = "eval"
    leak: Tolerance = 0.0
    pull_rate: Scale = 0.0
    label_smoothing: Tolerance = 0.0

    def __post_init__(self) -> None:
        if self.pull_rate and (self.project != "never" or not self.pull):
            raise ValueError(
                f"pull_rate {self.pull_rate:g} needs project 'never' and a pull, here {self.project!r} and {self.pull}"
            )
        if self.decay < 1 and (self.pull == "auto" or self.pull_rate):
            raise ValueError(f"decay {self.decay:g} with a pull that is solved or adapts; allowed: 1, equal steps")

    def check_threat(self, threat: Threat) -> None:
        """Refuse a threat for which `pull="auto"` has no solution."""
        solved_pull(self.pull, threat, self.steps, self.step, self.reach)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat) as threat:
            yield from self.loss_at(model, x, y, self.find(model, x, y, threat, generator))

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:
        """The points at which `loss_at` evaluates the loss; here the last point of ascent on the cross-entropy."""
        return self.climb(model, x, y, threat, generator)

    @abstractmethod
    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:
        """The terms of the loss at the points that `find` returned; calling it again evaluates the same points."""

    def climb(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        generator: Generator,
        loss: Loss = cross_entropy,
        seen: Callable[[Tensor], Tensor] = lambda point: point,
    ) -> Tensor:
        """`worst_point` with these settings."""
        found = partial(worst_point, model, x, y, threat, generator, loss=loss, seen=seen)
        return found(steps=self.steps, mode=self.mode, leak=self.leak, **self.chain())

    def first_pull(self, threat: Threat) -> float:
        """The pull at the start of a training that adapts it, times eps."""
        return threat.eps * solved_pull(self.pull, threat, self.steps, self.step, self.reach)

    def pulled(self, pull: float, threat: Threat) -> Self:
        """This defense with a pull of `pull` / eps."""
        return replace(self, pull=pull / threat.eps) if threat.eps > 0 else self

    def next_pull(self, pull: float, radius: float, threat: Threat) -> float:
        """The pull, times eps, after a batch whose points ended at this mean radius:

        pull exp(pull_rate (radius / eps - 1)),   at most 1 / step, with which the chain forgets its last point
        """
        if threat.eps == 0:
            return pull
        most = threat.eps / step_size(threat.eps, self.steps, self.step, self.reach)
        return min(most, pull * math.exp(self.pull_rate * (radius / threat.eps - 1)))

    def chain(self) -> Chain:
        """The settings of `ascend`, without `steps`."""
        return {
            "step": self.step,
            "reach": self.reach,
            "decay": self.decay,
            "start": self.start,
            "start_scale": self.start_scale,
            "direction": self.direction,
            "pull": self.pull,
            "project": self.project,
            "temperature": self.temperature,
        }


def in_two_parts(defense: Defense) -> TwoParts:
    """The defense, if AWP can use it."""
    if not isinstance(defense, TwoParts):
        raise UserError(f"awp needs a defense with the methods find and loss_at; {_name(defense)} has none")
    return defense


def terms(
    defense: Defense, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator
) -> Terms:
    """The terms that the defense yields, each checked."""
    return checked_terms(defense(model, x, y, threat, generator), defense, x)


def checked_terms(found: Terms, defense: object, x: Tensor) -> Terms:
    """The terms of this defense, each checked; anything but a term of this batch is an error."""
    name = _name(defense)
    if isinstance(found, Tensor | Term) or not isinstance(found, Iterable):
        raise UserError(f"{name} returned {_kind(found)}; expected: it yields Term(loss, logits, x_adv)")
    none = True
    for term in found:
        none = False
        if not isinstance(term, Term):
            raise UserError(f"{name} yielded {_kind(term)}; expected: Term(loss, logits, x_adv)")
        _check(term, x, name)
        yield term
    if none:
        raise UserError(f"{name} yielded nothing; expected: Term(loss, logits, x_adv), at least once")


def _check(term: Term, x: Tensor, name: str) -> None:
    loss, logits, x_adv = (tuple(part.shape) if isinstance(part, Tensor) else () for part in term)
    n = len(x)
    for field, right, shape in (
        ("loss", loss == (n,), f"({n},)"),
        ("logits", len(logits) == 2 and logits[0] == n, f"({n}, classes)"),
        ("x_adv", x_adv == tuple(x.shape), f"{tuple(x.shape)}"),
    ):
        if not right:
            found = _kind(getattr(term, field))
            raise UserError(f"{name} yielded a Term whose {field} is {found}; expected: a tensor of shape {shape}")
    if not term.loss.requires_grad:
        raise UserError(f"{name} yielded a Term whose loss has no gradient; expected: one of the network's output")


def _name(defense: object) -> str:
    defense = defense.func if isinstance(defense, partial) else defense  # with its memory bound
    return f"the defense {getattr(defense, '__name__', type(defense).__name__)}"


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
