"""Options of a training that do not change its result."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atent.errors import UserError
from atent.progress import say


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training that do not change its result.

    A checkpoint is written every `checkpoint_minutes`, and every `checkpoint_batches` if given. With `stream`, image
    files are read batch by batch in advance, by `workers` threads; without, all at the start. Default: stream if the
    images would fill more than a quarter of the RAM. With `compile`, the training's passes are compiled by
    torch.compile, which takes seconds to minutes at the start and rounds sums in another way. `say` is called with
    each line for the user; `clock` gives seconds, for the budget of a recipe with `minutes`.
    """

    device: torch.device | str = "cpu"
    workers: int = 2
    stream: bool | None = None
    checkpoint_minutes: float = 1.0
    checkpoint_batches: int | None = None
    tensorboard: bool = False
    compile: bool = False
    say: Callable[[str], None] = say
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("checkpoint_minutes", 0), ("checkpoint_batches", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name.replace('_', '-')} {value}; allowed: {least} or more")
