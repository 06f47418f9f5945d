"""Compute the rows that a file lacks and append them. `atent attack` and `atent certify` share this loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atent.errors import Interrupted
from atent.progress import progress, stop_requests
from atent.storage.files import alone
from atent.storage.row_file import RowFile
from atent.storage.row_format import Cost, Kind, R

Batches = Iterable[tuple[Sequence[Mapping[str, Any]], Cost]]


def record(
    kind: Kind[R], folder: Path, header: Mapping[str, Any], title: str, work: Callable[[Path, int], Batches]
) -> Path:
    """Append the rows that `work(path, done)` yields; `done` is the number of rows that the file already has.

    Only one process at a time does this. A request to stop takes effect after the current batch, whose rows are saved.
    """

    def kept() -> str:
        return f"the rows of {done:,} of {header['examples']:,} images in {file.path}"

    file = RowFile.of(kind, folder, header)
    with alone(file.path):
        done = file.resume(header)
        with stop_requests(kept) as stop, progress(title, header["examples"], "images", done) as show:
            for rows, cost in work(file.path, done):
                if rows:
                    file.append(rows, cost)
                    done += len(rows)
                    show(done)
                if stop:
                    raise Interrupted(stop[0], kept())
    return file.path
