"""Figures of the paper as files: SVG and PNG, the same bytes for the same numbers. Needs matplotlib."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atent.report.style import BLUE, DARK, ORANGE, PALE_BLUE, PALE_ORANGE, blank_figure
from atent.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLUE", "DARK", "ORANGE", "PALE_BLUE", "PALE_ORANGE", "drawing"]
DOTS = 200  # of the PNG, per inch


@contextmanager
def drawing(
    path: Path, rows: int, columns: int, size: tuple[float, float], **more: Any
) -> "Iterator[tuple[Figure, Any, list[str]]]":
    """Draw and save `path`.svg and `path`.png: yields the figure, its axes as an array of two dimensions, and a list.

    What is added to the list is what the figure shows, in words; the SVG carries it. A UserError without matplotlib.
    """
    with blank_figure(rows, columns, size, **more) as (figure, axes):
        words: list[str] = []
        yield figure, axes, words
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "svg": {"Date": None, "Title": path.name, "Description": " ".join(words)},
            "png": {"Software": None},
        }
        for end, about in metadata.items():
            content = io.BytesIO()
            figure.savefig(content, format=end, dpi=DOTS, metadata=about)
            write_atomically(path.with_suffix(f".{end}"), content.getvalue())
