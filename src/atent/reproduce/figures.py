"""The figures by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from atent.reproduce import curves, gibbs, regions
from atent.reproduce.appendix import FIGURES
from atent.reproduce.engine import Place


def draw_figure(name: str, place: Place) -> Path:
    """Draw a figure from what is in `place`; the path without the ends .svg and .png."""
    path, figure = place.home / name, FIGURES[name]
    drawers: dict[str, Callable[[Path], None]] = {
        "figure1": partial(regions.draw, figure, place),
        "figure2": gibbs.draw,
        "figure3": partial(curves.draw, figure, place),
    }
    drawers[name](path)
    return path
