"""Options of a training that do not change its result."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atent.limits import LARGEST, MOST, THREADS, check_range
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
        limits = {"workers": (1, THREADS), "checkpoint_minutes": (0, LARGEST), "checkpoint_batches": (1, MOST)}
        for name, (least, most) in limits.items():
            check_range(name.replace("_", "-"), getattr(self, name), least, most)
