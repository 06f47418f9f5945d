"""Rows about a target, written to a file that can be resumed. `attack` and `certify` share this loop."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atent import __version__
from atent.errors import Interrupted
from atent.evaluation.target import Target
from atent.progress import progress, stop_requests
from atent.smoothing.smoothed import Smoothed
from atent.storage.files import alone
from atent.storage.row_file import RowFile
from atent.storage.row_format import Cost, Kind, R

Batches = Iterable[tuple[Sequence[Mapping[str, Any]], Cost]]


def make_header(target: Target, settings: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """Everything that decides the rows: `settings` (with a `label`), and what the target says about itself.

    Also what a reader of the rows needs: our version, the classes' names.
    """
    header = {
        **settings,
        "data": target.data,
        "split": "test",
        "examples": len(target.images),
        "seed": seed,
        "model": target.model,
        "weights": target.weights,
        "version": __version__,
        "classes": target.images.classes,
    }
    if isinstance(target.network, Smoothed):
        header |= {"smooth": target.network.sigma, "draws": target.network.draws}
    if target.digest:
        header["images"] = target.digest
    return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # as it will be read: tuples become lists


def record(
    kind: Kind[R], folder: Path, header: Mapping[str, Any], title: str, work: Callable[[Path, int], Batches]
) -> Path:
    """Append the rows that `work(path, done)` yields; `done` is the number of rows that are in the file already.

    One process at a time does this. A request to stop takes effect after the batch at hand, whose rows are kept.
    """
    file = RowFile.of(kind, folder, header)
    with alone(file.path):
        done = file.resume(header)
        with stop_requests() as stop, progress(title, header["examples"], "images", done) as show:
            for rows, cost in work(file.path, done):
                if rows:
                    file.append(rows, cost)
                    done += len(rows)
                    show(done)
                if stop:
                    raise Interrupted(stop[0])
    return file.path
