"""Write the README's tables of results anew from the rows in results/."""

from pathlib import Path

from atent.certify import certified
from atent.report import certified_markdown, markdown, results

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: made by `make readme` -->", "<!-- end of results -->"
BEGIN_CERTIFIED, END_CERTIFIED = "<!-- certified: made by `make readme` -->", "<!-- end of certified -->"


def filled(readme: str) -> str:
    """The README with each table between its two marks replaced."""
    folders = sorted(path for path in (ROOT / "results").iterdir() if path.is_dir())
    attacked = markdown([line for folder in folders for line in results(folder)])
    proven = certified_markdown(one for folder in folders for one in certified(folder))
    return between(BEGIN_CERTIFIED, END_CERTIFIED, between(BEGIN, END, readme, attacked), proven)


def between(begin: str, end: str, text: str, table: str) -> str:
    """The text with a table between two marks; as it is if it has no such marks."""
    before, found, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}" if found else text


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
