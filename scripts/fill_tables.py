"""Fill the tables of README.md and docs/ from the rows in results/."""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import fill

import ablation
import entropy_table
import leaks
import one_coordinate
import robustness_curve
import searches
import side_by_side

from atent.cli.zoo import COLUMNS, cells
from atent.evaluation.estimate import estimates
from atent.report.brackets import bracket_markdown
from atent.report.tables import Result, certified_markdown, markdown, results
from atent.report.terminal import print_results
from atent.reproduce.appendix import TABLES
from atent.reproduce.document import markdown as paper_table
from atent.reproduce.engine import Place
from atent.storage.brackets import brackets
from atent.storage.certificates import certified
from atent.storage.files import read_rows
from atent.zoo.index import read_index

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COMPARED = RESULTS / "side-by-side"


DEMO = tuple(curve.network for curve in robustness_curve.CURVES)
SUMMARY = (  # the network of the TRADES authors, that of Table 1, and networks of the zoo
    "trades-authors",
    "zoo/mnist-linf-four",
    "reproduce/mnist-l2-atent",
    "zoo/cifar10-linf",
    "zoo/cifar10-l2",
)


def attacked() -> str:
    """Every attack on every network; the demo's other radii have their own table."""
    return markdown([*demo(), *(line for folder in networks() if folder.name not in DEMO for line in results(folder))])


def demo() -> list[Result]:
    trained_at = f"linf:{robustness_curve.TRAINED_AT:g}"
    return [line for name in DEMO for line in results(RESULTS / name) if line.threat == trained_at]


def printed() -> str:
    """The output of `make demo`, without the margin."""
    with redirect_stdout(StringIO()) as text:
        print_results([line for line in demo() if line.attack == "PGD-20"])
    lines = (line.strip() for line in text.getvalue().splitlines())
    return "\n".join(["```", *filter(None, lines), "```"])


def summary() -> str:
    """Estimates for whole test sets under `strong`, with clean accuracy."""
    lines = ["| network | data | threat | clean % | robust % [95 %] |", "|---|---|---|---:|---:|"]
    for name in SUMMARY:
        (found,) = (one for one in estimates(RESULTS / name) if one.name == "strong")
        clean = max(results(RESULTS / name), key=lambda line: line.examples).clean
        accuracy = f"{found.estimate.value:.2f} [{found.estimate.low:.2f}, {found.estimate.high:.2f}]"
        lines.append(f"| {found.run} | {found.data} | {found.threat} | {100 * clean.value:.2f} | {accuracy} |")
    return "\n".join(lines)


def sampled() -> str:
    """Every estimate of a whole test set."""
    head = "| network | data | threat | attack | robust % of all images | all + drawn | broken |"
    body = (
        f"| {one.run} | {one.data} | {one.threat} | {one.name} | {one.estimate.value:.2f} [{one.estimate.low:.2f}, "
        f"{one.estimate.high:.2f}] | {one.whole:,} + {one.drawn:,} | {one.broken:,} |"
        for folder in networks()
        for one in estimates(folder)
    )
    return "\n".join([head, "|---|---|---|---|---:|---:|---:|", *body])


def proven() -> str:
    return certified_markdown([one for folder in networks() for one in certified(folder)])


def two_sided() -> str:
    """Every bracket; sentences below the table are wrapped."""
    text = bracket_markdown([one for folder in networks() for one in brackets(folder)])
    return "\n".join(line if line.startswith("|") else fill(line, 118) for line in text.split("\n"))


def ablated() -> str:
    return ablation.table(list(read_rows(RESULTS / "ablation.jsonl")))


def arms() -> str:
    return entropy_table.table(list(read_rows(RESULTS / "entropy.jsonl")), "k10@20", together=True).strip()


def by_noise() -> str:
    rows = list(read_rows(RESULTS / "entropy.jsonl"))
    return entropy_table.by_noise(rows, ["k10", "k5", "k3", "k2", "k1", "d5", "d3"], "b32", minutes=20)


def leaked() -> str:
    return leaks.table(list(read_rows(leaks.ROWS)))


def climbed() -> str:
    return searches.table(list(read_rows(RESULTS / "searches.jsonl")))


def pulled() -> str:
    return one_coordinate.table(list(read_rows(one_coordinate.ROWS)))


def compared() -> str:
    return side_by_side.table(COMPARED, RESULTS / "trades-authors")


def pretrained() -> str:
    """The networks of the zoo, each with a link to its card."""
    head = f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|---:|---:|---:|---|"
    lines = [[f"[`{name}`](../src/atent/zoo/{name}.md)", *cells(entry)] for name, entry in read_index().items()]
    return "\n".join([head, *(f"| {' | '.join(line)} |" for line in lines)])


def networks() -> list[Path]:
    return sorted(folder for folder in RESULTS.iterdir() if folder.is_dir() and folder != COMPARED)


def of_the_paper(name: str) -> Callable[[], str]:
    """A table of the paper with our numbers, as `atent reproduce` prints it; reused runs are those of the zoo."""
    place = Place(RESULTS / "reproduce", "cpu", reuse=tuple(sorted((RESULTS / "zoo").iterdir())))
    return lambda: paper_table(TABLES[name], place).strip()


def result_sentence(name: str) -> Callable[[], str]:
    return lambda: side_by_side.sentence(COMPARED / name)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"printed": printed, "summary": summary},
    "docs/results.md": {
        "curve": robustness_curve.table,
        "results": attacked,
        "whole test set": sampled,
        "side by side": compared,
        "certified": proven,
        "two-sided": two_sided,
    },
    "docs/atent.md": {"ablation": ablated, "our result": result_sentence("atent")},
    "docs/entropy.md": {"arms": arms, "steps and noise": by_noise},
    "docs/search.md": {"searches": climbed, "leaks": leaked},
    "docs/paper-tables.md": {**{name: of_the_paper(name) for name in TABLES}, "one coordinate": pulled},
    "docs/zoo.md": {"networks": pretrained},
    "docs/standard.md": {"our result": result_sentence("sgd")},
    **{
        f"docs/{name}.md": {"our result": result_sentence(name)}
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
