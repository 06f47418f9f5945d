"""Compute the rows that a file lacks and append them. `atent attack` and `atent certify` share this loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from atent.errors import Interrupted
from atent.parallel.team import current_team
from atent.progress import progress, stop_requests
from atent.storage.files import alone
from atent.storage.row_file import RowFile
from atent.storage.row_format import Cost, Kind, R

Batches = Iterable[tuple[Sequence[Mapping[str, Any]], Cost]]
Costly = tuple[Mapping[str, Any], Sequence[float]]  # a row and a cost, as they pass from process to process


def with_cost(rows: Sequence[Mapping[str, Any]], cost: Cost) -> list[Costly]:
    """Each row with a part of the cost of all: the first one has it."""
    return [(row, Cost() if k else cost) for k, row in enumerate(rows)]


def summed(rows: Sequence[Costly]) -> tuple[list[Mapping[str, Any]], Cost]:
    """The rows, and their cost."""
    costs = [Cost(*map(sum, zip(*(cost for _, cost in rows), strict=True)))] if rows else []
    return [row for row, _ in rows], next(iter(costs), Cost())


def record(
    kind: Kind[R], folder: Path, header: Mapping[str, Any], title: str, work: Callable[[Path, int], Batches]
) -> Path:
    """Append the rows that `work(path, done)` yields; `done` is the number of rows that the file already has.

    Only one process at a time does this, or one team. Every process of a team is given all rows by `work`, and the
    first one writes them. A request to stop takes effect after the current batch, whose rows are saved.
    """
    team = current_team()

    def kept() -> str:
        return f"the rows of {done:,} of {header['examples']:,} images in {file.path}"

    file = RowFile.of(kind, folder, header)
    with alone(file.path) if team.leads else nullcontext():
        done = team.first(file.resume(header) if team.leads else 0)
        with (
            stop_requests(kept, tell=team.size == 1) as stop,
            progress(title, header["examples"], "images", done) as show,
        ):
            for rows, cost in work(file.path, done):
                if rows:
                    if team.leads:
                        file.append(rows, cost)
                    done += len(rows)
                    show(done)
                if asked := team.largest(stop[0] if stop else 0):
                    raise Interrupted(asked, kept())
            if team.leads:
                file.sync()
    team.wait()  # for the last rows
    return file.path
