"""Regenerate the tables in README.md and on the pages of the defenses from the rows in results/."""

from collections.abc import Callable
from pathlib import Path

import ablation
import side_by_side

from atent.report.tables import certified_markdown, markdown, results
from atent.storage.certificates import certified
from atent.storage.files import read_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COMPARED = RESULTS / "side-by-side"


def attacked() -> str:
    return markdown([line for folder in networks() for line in results(folder)])


def proven() -> str:
    return certified_markdown([one for folder in networks() for one in certified(folder)])


def ablated() -> str:
    return ablation.table(list(read_rows(RESULTS / "ablation.jsonl")))


def compared() -> str:
    return side_by_side.table(COMPARED, RESULTS / "trades-authors")


def networks() -> list[Path]:
    return sorted(folder for folder in RESULTS.iterdir() if folder.is_dir() and folder != COMPARED)


def reached(name: str) -> Callable[[], str]:
    return lambda: side_by_side.sentence(COMPARED / name)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"results": attacked, "side by side": compared, "certified": proven},
    "docs/atent.md": {"ablation": ablated, "our result": reached("atent")},
    "docs/standard.md": {"our result": reached("sgd")},
    **{
        f"docs/{name}.md": {"our result": reached(name)}
        for name in ("entropy-sgd", "fast", "pgd-at", "trades", "mart", "mma")
    },
}


def filled(page: str) -> str:
    """The page with the text between the marks of each of its tables replaced."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, table in PAGES[page].items():
        begin, end = f"<!-- {name}: made by `make readme` -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no marks of the table {name!r}: {begin} and {end}")
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(filled(page), encoding="utf-8")
