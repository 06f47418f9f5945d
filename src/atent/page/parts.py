"""The parts that a page is made of: tables, figures, images and the sections that hold them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a table. `value` is what a column is sorted by, `share` in [0, 1] shades it."""

    text: str
    value: float | None = None
    share: float | None = None
    strong: bool = False


Rows = list[list[Cell | str]]


class Table(NamedTuple):
    """A table with a caption. The first cell of a row names it; columns in `numeric` are aligned to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    sortable: bool = True
    matrix: bool = False  # cells of one width

    @classmethod
    def of(
        cls,
        caption: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell | str]],
        *,
        left: int = 1,
        note: str = "",
    ) -> "Table":
        """A table of cells and texts; all columns but the first `left` hold numbers."""
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        return cls(caption, columns, cells, frozenset(range(left, len(columns))), note)

    def filled(self) -> "Table":
        """The table without the columns that are empty in every row."""
        return self.compact(*(k for k in range(len(self.columns)) if not any(row[k].text for row in self.rows)))

    def compact(self, *places: int) -> "Table":
        """The table without those of these columns that have the same text in every row."""
        same = {place for place in places if len({row[place].text for row in self.rows}) <= 1}
        kept = [place for place in range(len(self.columns)) if place not in same]
        return self._replace(
            columns=[self.columns[place] for place in kept],
            rows=[[row[place] for place in kept] for row in self.rows],
            numeric=frozenset(number for number, place in enumerate(kept) if place in self.numeric),
        )


class Drawing(NamedTuple):
    """A figure as inline SVG, its caption, and what it shows in words for those who do not see it."""

    svg: str
    caption: str
    words: str


class Example(NamedTuple):
    """An attacked image: its pictures as data URIs, and what the network predicts."""

    number: int
    label: str
    clean: str
    adversarial: str
    size: str
    broken: bool
    pictures: tuple[str, str, str]


class Gallery(NamedTuple):
    """Attacked images of one attack."""

    title: str
    words: str
    examples: list[Example]


class Fold(NamedTuple):
    """Parts behind a summary that opens them."""

    summary: str
    parts: list["Part"]


class Commands(NamedTuple):
    """Commands that can be pasted into a shell, and what they do."""

    words: str
    lines: list[str]


class Note(NamedTuple):
    """A paragraph; a warning stands out, and a verdict is set larger."""

    text: str
    kind: str = ""


Part = Table | Drawing | Gallery | Fold | Commands | Note


class Section(NamedTuple):
    """A heading and the parts below it."""

    key: str
    title: str
    parts: list[Part]


class Headline(NamedTuple):
    """A number at the top of the page."""

    value: str
    words: str
    interval: str = ""
