"""One style for all figures: readable in grey, SVG and PNG, the same bytes for the same numbers. Needs matplotlib."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atent.errors import UserError
from atent.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK, BLUE, ORANGE = "#222222", "#0b3c8c", "#c4661f"  # orange is the lighter one in grey
PALE_BLUE, PALE_ORANGE = "#9db7de", "#f6e3d3"
DOTS = 200  # of the PNG, per inch
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "atent",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "lines.linewidth": 2,
}


@contextmanager
def drawing(
    path: Path, rows: int, columns: int, size: tuple[float, float], **more: Any
) -> "Iterator[tuple[Figure, Any, list[str]]]":
    """Draw and save `path`.svg and `path`.png: yields the figure, its axes as an array of two dimensions, and a list.

    What is added to the list is what the figure shows, in words; the SVG carries it. A UserError without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib; it is in the extra `report`: pip install 'atent[report]'") from None
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        words: list[str] = []
        yield figure, figure.subplots(rows, columns, squeeze=False, **more), words
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "svg": {"Date": None, "Title": path.name, "Description": " ".join(words)},
            "png": {"Software": None},
        }
        for end, about in metadata.items():
            content = io.BytesIO()
            figure.savefig(content, format=end, dpi=DOTS, metadata=about)
            write_atomically(path.with_suffix(f".{end}"), content.getvalue())
