"""Optimizers and schedules of torch, of other packages and of users: `package.module:Name` with its fields."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, make_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from atent.errors import UserError, reason_of
from atent.methods import import_object, is_imported, make
from atent.optim.optimizers import OPTIMIZERS, Optimizer
from atent.optim.schedule import Rates, Schedule

_PLAIN = (bool, int, float, str, type(None))


def make_optimizer(settings: Mapping[str, Any]) -> Optimizer:
    """Make `{"name": ..., field: value}`: ours, a torch optimizer by `package.module:Name`, or a user's own method.

    The fields of a torch optimizer are the arguments of its class.
    """
    name = str(settings.get("name", ""))
    found = import_object(name, "optimizer") if is_imported(name) else None
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        made: Optimizer = make(OPTIMIZERS, settings, "optimizer")
    else:
        made = _make_like(found, settings, "optimizer", {"__call__": _building(found, name)})
        made([nn.Parameter(torch.zeros(2, 2))])  # its class checks the values
    if not isinstance(getattr(made, "lr", None), float | int):
        raise UserError(f"optimizer {name!r} has no attribute lr, the learning rate that the schedule multiplies")
    return made


def make_rates(schedule: Schedule | Mapping[str, Any], lr: float) -> Rates:
    """The factors that a schedule of a recipe gives; a `package.module:Name` is imported.

    It is a scheduler of torch, or a class with a method `rate(done, epochs)` and, optionally, `eps_share(done)`.
    """
    if isinstance(schedule, Schedule):
        return schedule
    name = str(schedule["name"])
    found = import_object(name, "schedule")
    if isinstance(found, type) and issubclass(found, LRScheduler):
        if "metrics" in inspect.signature(found.step).parameters:
            raise UserError(f"schedule {name} needs a metric; allowed: schedulers that depend on the epoch alone")
        members = {"_scheduler": found, "_lr": lr, "rate": _rate, "eps_share": _whole}
        steps: list[Any] = [("steps", int | None, None)]
        rates: Rates = _make_like(found, schedule, "schedule", members, steps, left_out=("last_epoch", "verbose"))
        return rates
    expected = "expected a class with a method rate(self, done, epochs), or a scheduler of torch"
    if not isinstance(found, type):
        raise UserError(f"schedule {name!r} is not a class but of type {type(found).__name__}; {expected}")
    if not callable(getattr(found, "rate", None)):
        raise UserError(f"schedule {name!r} has no method rate; {expected}")
    members = {} if hasattr(found, "eps_share") else {"eps_share": _whole}
    whole = type(found.__name__, (found,), members)
    made: Rates = make({_alias(name): whole}, {**schedule, "name": _alias(name)}, "schedule")
    return made


def _make_like(
    found: type,
    settings: Mapping[str, Any],
    kind: str,
    members: dict[str, Any],
    more: Iterable[Any] = (),
    left_out: tuple[str, ...] = (),
) -> Any:
    """An object whose fields are the arguments of the class `found`, without the first, and those in `more`.

    An argument whose default cannot be written into a recipe must be given.
    """
    _, *arguments = inspect.signature(found).parameters.values()
    fields = [
        (one.name, Any, field(default=one.default) if _is_plain(one.default) else field())
        for one in arguments
        if one.name not in left_out and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    like = make_dataclass(found.__name__, [*fields, *more], namespace=members, frozen=True, kw_only=True, eq=False)
    name = _alias(str(settings["name"]))
    return make({name: like}, {**settings, "name": name}, kind)


def _alias(name: str) -> str:
    """`torch.optim.AdamW` for `torch.optim:AdamW`, which stands for the class that was imported."""
    return name.replace(":", ".")


def _is_plain(value: object) -> bool:
    """Whether a default can be written into a recipe."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _building(found: Any, name: str) -> Any:
    def build(self: Any, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        try:
            optimizer: torch.optim.Optimizer = found(parameters, **asdict(self))
        except Exception as error:  # some refuse the network's parameters
            raise UserError(f"optimizer {name}: {_line(error)}") from None
        return optimizer

    return build


@lru_cache(maxsize=64)  # of schedules: each keeps a class
def _course(schedule: Any, total: int) -> list[float]:
    """The factors of the learning rate after 0, 1, ..., total - 1 steps of a torch scheduler."""
    fields = {key: value for key, value in asdict(schedule).items() if key != "steps"}
    factors = []
    try:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=schedule._lr, momentum=0.9)
        scheduler = schedule._scheduler(optimizer, **fields)
        for _ in range(total):
            factors.append(float(optimizer.param_groups[0]["lr"]) / schedule._lr)
            optimizer.step()
            scheduler.step()
    except Exception as error:
        if len(factors) < total:
            raise UserError(f"schedule {type(schedule).__name__}: {_line(error)}") from None
    return factors


def _rate(self: Any, done: float, epochs: int) -> float:
    """The factor after so many steps of a torch scheduler; the tolerance is that of `Schedule`."""
    total = self.steps or epochs
    return _course(self, total)[min(int(done * total + 1e-9), total - 1)]


def _whole(self: Any, done: float) -> float:  # noqa: ARG001 (as a schedule has it)
    """All of eps, during the whole training."""
    return 1.0


_line = reason_of
