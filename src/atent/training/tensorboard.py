"""The lines of the log as TensorBoard curves, if TensorBoard is installed."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atent.errors import UserError

CURVES = ("loss", "train_robust", "train_clean", "radius", "clean", "robust", "seconds")
Draw = Callable[[Mapping[str, Any]], None]


@contextmanager
def board(folder: Path, history: Iterable[Mapping[str, Any]]) -> Iterator[Draw]:
    """Draw all epochs so far; yields a function that draws each further epoch."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(f"--tensorboard: {error}; pip install 'atent[report]' installs it") from None
    shutil.rmtree(folder, ignore_errors=True)  # a killed run may have drawn an epoch that is repeated

    with SummaryWriter(folder) as writer:

        def draw(row: Mapping[str, Any]) -> None:
            for name in CURVES:
                if name in row:
                    writer.add_scalar(name, row[name], row["epoch"])
            writer.flush()

        for row in history:
            draw(row)
        yield draw


@contextmanager
def no_board() -> Iterator[Draw]:
    """A function that draws nothing, for runs without TensorBoard."""
    yield lambda _: None
