"""The log's lines as TensorBoard's curves, for those who have it."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atent.errors import UserError

CURVES = ("loss", "train_robust", "radius", "clean", "robust", "seconds")
Draw = Callable[[Mapping[str, Any]], None]


@contextmanager
def board(folder: Path, history: Iterable[Mapping[str, Any]]) -> Iterator[Draw]:
    """Draw the epochs so far anew, and with the function yielded every further one."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(f"--tensorboard: {error}; pip install 'atent[report]' brings it") from None
    shutil.rmtree(folder, ignore_errors=True)  # a killed run may have drawn an epoch that is trained again

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
    """For runs that are not drawn."""
    yield lambda _: None
