"""How a training is run, as far as it does not change what comes out."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atent.errors import UserError


@dataclass(frozen=True)
class TrainingOptions:
    """How a training is run, as far as it does not change what comes out.

    A checkpoint is written every `checkpoint_minutes`, or every `checkpoint_batches`. Images in files are read ahead by
    `workers` threads if `stream` says so (by default where they would fill a quarter of the machine's memory), else at
    once. `say` takes a line for the user.
    """

    device: torch.device | str = "cpu"
    workers: int = 2
    stream: bool | None = None
    checkpoint_minutes: float = 1.0
    checkpoint_batches: int | None = None
    tensorboard: bool = False
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("checkpoint_minutes", 0), ("checkpoint_batches", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name.replace('_', '-')} {value}; allowed: {least} or more")
