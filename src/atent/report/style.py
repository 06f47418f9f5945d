"""The style that all figures of matplotlib share: readable in grey, the same bytes for the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from atent.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK, BLUE, ORANGE = "#222222", "#0b3c8c", "#c4661f"  # orange is the lighter one in grey
PALE_BLUE, PALE_ORANGE = "#9db7de", "#f6e3d3"
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
def blank_figure(
    rows: int, columns: int, size: tuple[float, float], settings: dict[Any, Any] | None = None, **more: Any
) -> "Iterator[tuple[Figure, Any]]":
    """A figure in this style and its axes as an array of two dimensions; a UserError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib; it is in the extra `report`: pip install 'atent[report]'") from None
    with mpl.rc_context(_SETTINGS | (settings or {})):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **more)
