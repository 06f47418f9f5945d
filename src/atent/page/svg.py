"""Figures as inline SVG whose colours are those of the page, so that they follow its light or dark scheme."""

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atent.report.style import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Stand-ins: matplotlib needs numbers, and the SVG then has the page's variables in their place.
INK, QUIET, RULE, PAPER = "#010203", "#010204", "#010205", "#010206"
SERIES = tuple(f"#0102{k:02x}" for k in range(16, 22))
_VARIABLES = {INK: "--ink", QUIET: "--quiet", RULE: "--rule", PAPER: "--paper"}
_VARIABLES |= {color: f"--series-{k}" for k, color in enumerate(SERIES)}
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDE, HIGH = 5.4, 3.2  # inches: at 390 pixels the letters keep nearly their size
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters stay letters, in the page's font
    "text.parse_math": False,  # a name with dollars is a name
    "font.size": 11,
    "axes.titlesize": 11,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass
class Canvas:
    """A figure in the making: `tips` are the points that show a value, `svg` is set at the end."""

    figure: "Figure"
    axes: Any
    tips: list[tuple[Any, float, float, str]] = field(default_factory=list)
    svg: str = ""

    def tip(self, axes: Any, xs: Sequence[float], ys: Sequence[float], words: Sequence[str]) -> None:
        """Values to show at points of the axes."""
        self.tips += [(axes, x, y, text) for x, y, text in zip(xs, ys, words, strict=True)]


@contextmanager
def canvas(
    name: str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (WIDE, HIGH), **more: Any
) -> Iterator[Canvas]:
    """Draw in the block; afterwards `svg` is the figure. `name` begins its ids, which must be unique in a page."""
    with blank_figure(rows, columns, size, _SETTINGS | {"svg.hashsalt": name}, **more) as (figure, axes):
        made = Canvas(figure, axes)
        yield made
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        made.svg = inline(content.getvalue(), name, _points(made))


def _points(made: Canvas) -> str:
    """A transparent disc for each value, with a title that browsers show on hover."""
    height = made.figure.bbox.height
    discs = []
    for axes, x, y, words in made.tips:
        across, up = axes.transData.transform((x, y)) * 72 / made.figure.dpi
        place = f'cx="{across:.1f}" cy="{height * 72 / made.figure.dpi - up:.1f}" r="7"'
        discs.append(f'<circle class="tip" {place}><title>{html.escape(words)}</title></circle>')
    return "".join(discs)


def inline(svg: str, name: str, more: str = "") -> str:
    """An SVG file as a part of a page: no header, metadata or namespaces, ids of its own, the page's colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href=", "href=")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)', lambda found: f"{found[1]}{name}-", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var({variable})")
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    (box,) = re.findall(r'viewBox="([^"]*)"', body)
    inside = body[body.index(">") + 1 : body.rindex("</svg>")]
    return re.sub(r"\s*\n\s*", "\n", f'<svg viewBox="{box}" aria-hidden="true">{inside}{more}</svg>')
