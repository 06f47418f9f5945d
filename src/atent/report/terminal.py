"""Tables and lines on the terminal. What is constant in a table is in its title, so that it fits 80 columns."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atent.progress import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from atent.evaluation.estimate import Estimated
    from atent.evaluation.sampling import Goal
    from atent.report.tables import Group, Result
    from atent.storage.certificates import Certified
    from atent.threat import Threat

    Evaluated = Sequence[Group | Estimated]

WIDE = 120  # columns of what is not a terminal


def tell(line: str, indent: int = 2) -> None:
    """Print a line on standard output, wrapped between words on a terminal."""
    say(line, sys.stdout, indent)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table with a title; columns of numbers are aligned to the right and never wrapped."""
    from rich.text import Text

    console = _console()
    console.print(Text(title, style="bold"))
    console.print(_table(columns, rows))


def _console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=WIDE, highlight=False)


def _table(columns: list[str], rows: list[list[str]]) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        numeric = "%" in column or column in ("images", "distance", "p")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))  # brackets in a name are not markup
    return table


def fits(columns: list[str], rows: list[list[str]]) -> bool:
    """Whether the table is not wider than the terminal."""
    from rich.measure import Measurement

    console = _console()
    wide = console.options.update(width=10_000)
    return Measurement.get(console, wide, _table(columns, rows)).maximum <= console.width


def print_results(lines: "Sequence[Result]") -> None:
    """A table per data set with a line for each network, threat and attack; if it is too wide, a table for each."""
    from atent.report.tables import UNVERIFIED

    for data in dict.fromkeys(line.data for line in lines):
        _print_part([line for line in lines if line.data == data], ["run", "threat"])
    if any(line.distance is not None for line in lines):
        tell("distance: median to the nearest misclassified image found")
    if not all(line.verified for line in lines):
        tell(UNVERIFIED)


def _print_part(lines: "Sequence[Result]", splits: list[str]) -> None:
    """One table, or, while it is too wide, one for each value of the next field of `splits`."""
    title, columns, rows = _tabulated(lines)
    if fits(columns, rows) or not splits:
        print_table(title, columns, rows)
        return
    field, *others = splits
    for value in dict.fromkeys(getattr(line, field) for line in lines):
        _print_part([line for line in lines if getattr(line, field) == value], others)


def _tabulated(lines: "Sequence[Result]") -> tuple[str, list[str], list[list[str]]]:
    """The title with what is constant, the columns of what is not, and the cells. A robust accuracy is in a column."""
    from atent.report.tables import distance_words, mark

    cells: dict[str, Callable[[Result], str]] = {
        "network": lambda line: line.run,
        "threat": lambda line: line.threat,
        "attack": lambda line: f"{line.attack}{mark(line.verified)}",
        "images": lambda line: f"{line.examples:,}",
        "clean % [95 %]": lambda line: str(line.clean),
        "robust % [95 %]": lambda line: str(line.robust),
        "distance": distance_words,
    }
    one = {name: cell(lines[0]) for name, cell in cells.items() if len({cell(line) for line in lines}) == 1}
    kept = {"robust % [95 %]"} | ({"attack"} if len(lines) == 1 else set())
    if any(line.distance is not None for line in lines):
        kept.add("distance")
    constant = {name: text for name, text in one.items() if name not in kept}
    network = f"{constant['network']}: " if "network" in constant else ""
    images = f"{constant['images']} " if "images" in constant else ""
    clean = f"clean % {constant['clean % [95 %]']}" if "clean % [95 %]" in constant else ""
    shared = [f"{images}{lines[0].data} test images", constant.get("threat"), constant.get("attack"), clean]
    columns = [name for name in cells if name not in constant]
    return (
        network + ", ".join(filter(None, shared)),
        columns,
        [[cells[name](line) for name in columns] for line in lines],
    )


def print_certified(one: "Certified") -> None:
    """Certified accuracy at each radius asked for, and the settings of the certification."""
    from atent.report.tables import UNVERIFIED, mark
    from atent.storage.certificates import smoothing_of

    how = one.header
    covers = any(threat for _, threat in one.radii)
    rows = [[f"{radius:.4g}", threat, str(one.accuracy(radius))] for radius, threat in one.radii]
    print_table(
        f"{one.run}{mark(one.verified)}: {len(one.rows):,} {how['data']} test images, {smoothing_of(how)}",
        ["l2 radius", *(["covers"] if covers else []), "certified % [95 %]"],
        [row if covers else [row[0], row[2]] for row in rows],
    )
    if any(threat.startswith("linf") for _, threat in one.radii):
        tell("linf by the norm bound: a linf ball of eps lies in an l2 ball of eps sqrt(d), with d pixel values.")
    most = f"{how['n0'] + how['n']:,}"
    spent = f"{most} draws per image" if one.exact else f"mean draws per image {one.mean_draws:,.0f} of {most}"
    tell(f"abstained {one.abstained}; {spent}; {one.cost.seconds:,.1f} s")
    if one.exact:
        tell(f"average certified radius {one.mean_radius:.3f}")
    tell(f"curve: {one.path.with_suffix('.png')}")
    if not one.verified:
        tell(UNVERIFIED)


def print_classes(found: "Iterable[Group]") -> None:
    """A table of accuracies per class for each network and threat."""
    from atent.report.tables import class_results

    columns = ["class", "images", "clean % [95 %]", "robust % [95 %]"]
    for title, lines in class_results(found):
        print_table(title, columns, [[c.name, f"{c.examples:,}", str(c.clean), str(c.robust)] for c in lines])


def print_attacks(folder: Path, files: Iterable[Path], *, classes: bool, images: bool) -> "Evaluated":
    """The attacks in `files`, with `classes` also per class; then the cost and the file of each. Returns them."""
    from atent.report.tables import grouped, result_lines
    from atent.storage.row_file import RowFile
    from atent.storage.rows import ATTACK

    found = grouped(folder, [(file, RowFile(ATTACK, file).read()) for file in files])
    print_results(result_lines(found))
    if classes:
        print_classes(found)
    for group in found:
        for title, file, attack in zip(group.titles, group.files, group.attacks, strict=True):
            tell(f"{title} {group.threat}: {attack.cost}")
            if broken := Counter(row["by"] for row in attack.rows if row.get("by")):
                tell(f"  broken by {', '.join(f'{name} {count:,}' for name, count in broken.items())}")
            tell(f"  rows: {file}{f'; images: {file.stem}.npz, .png' if images else ''}")
    return found


def print_estimates(found: "Sequence[Estimated]", goal: "Goal") -> "Evaluated":
    """What the estimate of each threat took, and how a claim ended. Returns the estimates."""
    for one in found:
        tell(f"{one.name}, {one.threat}: {_drawn(one)}")
        if one.first_cost is not None:
            tell(f"all images: {one.first_cost}")
        tell(f"sample: {one.cost}")
        tell(f"  rows: {one.path}")
        if goal.claim is not None:
            outcome = goal.reached(one.estimate)
            tell(f"at least {goal.claim:g} %: {outcome if outcome in ('accepted', 'refuted') else 'not settled'}")
        if goal.within is not None and one.estimate.half_width > goal.within:
            tell(f"the half-width is {one.estimate.half_width:.2f}, not {goal.within:g}: the claim was settled first")
    return found


def _drawn(one: "Estimated") -> str:
    if not one.survivors:
        return "no image is still classified correctly after the first attack, so none is drawn"
    return f"{one.broken:,} of {one.drawn:,} images drawn from {one.survivors:,} survivors were broken"


def print_verdicts(found: "Evaluated", suite: str | None, signs: "Mapping[Threat, list[str]]") -> None:
    """The warnings of the checks, and last the verdict for each threat, in one line.

    The checks at the largest radius of a norm count for its smaller radii, too.
    """
    from atent.report.tables import Group
    from atent.report.verdict import verdict

    for threat, warnings in signs.items():
        tell(f"Checks at {threat}: {'' if warnings else 'nothing suspicious'}".rstrip())
        for warning in warnings:
            tell(f"  warning: {warning}.")
    by_norm = {threat.norm: warnings for threat, warnings in signs.items()}
    for one in found:
        if not isinstance(one, Group):
            tell(str(one))
            continue
        name, size = suite or one.titles[0], len(one.attacks[0].rows)
        tell(verdict(name, str(one.threat), size, one.robust, one.clean.value, by_norm.get(one.threat.norm)))
