"""Write the README's table of results anew from the rows in results/."""

from pathlib import Path

from atent.report import markdown, results

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: made by `make readme` -->", "<!-- end of results -->"


def filled(readme: str) -> str:
    """The README with the table between its two marks replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    folders = sorted(path for path in (ROOT / "results").iterdir() if path.is_dir())
    table = markdown([line for folder in folders for line in results(folder)])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
