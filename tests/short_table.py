"""A table of two networks that takes seconds: three layers for two digits. Light, for processes that are killed."""

from dataclasses import replace
from pathlib import Path

from atent.reproduce.appendix import FIGURES
from atent.reproduce.document import latex, markdown
from atent.reproduce.engine import Place, jobs, run
from atent.reproduce.plan import Measure, Table

SHORT = Table(
    "Short",
    ("clean", "PGD-40", "strong"),
    tuple(replace(row, cells={**row.cells, "strong": Measure("strong")}) for row in FIGURES["figure1"].rows[::3]),
    ("A note with 5 % & a_b.",),
)


def short_place(home: Path) -> Place:
    return Place(home, "smoke", checkpoint_batches=1)


def make_short_table(home: Path) -> None:
    """Train and measure in this process, and write the table."""
    place = short_place(home)
    assert run(jobs(place, SHORT.rows), 1, lambda _: None) == {}
    (home / "short.md").write_text(markdown([SHORT], place), encoding="utf-8")
    (home / "short.tex").write_text(latex([SHORT], place), encoding="utf-8")
