"""Tables on the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atent.evaluation.estimate import Estimated
    from atent.evaluation.sampling import Goal
    from atent.report.tables import Group, Result
    from atent.storage.certificates import Certified
    from atent.threat import Threat


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table with a title; columns of numbers are aligned to the right and never wrapped."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # six columns fit into 80 characters
    for column in columns:
        numeric = "%" in column or column in ("images", "distance")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))  # brackets in a name are not markup
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=120, highlight=False)
    console.print(escape(title), style="bold")
    console.print(table)


def print_results(lines: "list[Result]") -> None:
    """A table per data set, with a line for each threat and attack."""
    from atent.report.tables import UNVERIFIED, distance_words, mark

    columns = ["network", "threat", "attack", "images", "clean % [95 %]", "robust % [95 %]"]
    if measured := any(line.distance is not None for line in lines):
        columns.append("distance")
    groups: dict[str, list[list[str]]] = {}
    for line in lines:
        attack = f"{line.attack}{mark(line.verified)}"
        row = [line.run, line.threat, attack, f"{line.examples:,}", str(line.clean), str(line.robust)]
        groups.setdefault(line.data, []).append([*row, distance_words(line)] if measured else row)
    for data, rows in groups.items():
        words = "; distance: median to the nearest misclassified image found" if measured else ""
        print_table(f"{data} test images{words}", columns, rows)
    if not all(line.verified for line in lines):
        print(UNVERIFIED)


def print_certified(one: "Certified") -> None:
    """Certified accuracy at each radius asked for, and the settings of the certification."""
    from atent.report.tables import UNVERIFIED, mark

    how = one.header
    settings = f"smoothed with sigma {how['sigma']:g}; n {how['n']:,}, alpha {how['alpha']:g}"
    rows = [[f"{radius:.4g}", threat, f"{len(one.rows):,}", str(one.accuracy(radius))] for radius, threat in one.radii]
    print_table(
        f"{one.run}{mark(one.verified)}: {how['data']} test images, {settings}",
        ["l2 radius", "covers", "images", "certified % [95 %]"],
        rows,
    )
    if any(threat.startswith("linf") for _, threat in one.radii):
        print("linf by the norm bound: a linf ball of eps lies in an l2 ball of eps sqrt(d), with d pixel values.")
    most = f"{how['n0'] + how['n']:,}"
    spent = f"{most} draws per image" if one.exact else f"mean draws per image {one.mean_draws:,.0f} of {most}"
    print(f"abstained {one.abstained}; {spent}; {one.cost.seconds:,.1f} s")
    if one.exact:
        print(f"average certified radius {one.mean_radius:.3f}")
    print(f"curve: {one.path.with_suffix('.png')}")
    if not one.verified:
        print(UNVERIFIED)


def print_classes(found: "Iterable[Group]") -> None:
    """A table of accuracies per class for each network and threat."""
    from atent.report.tables import class_results

    columns = ["class", "images", "clean % [95 %]", "robust % [95 %]"]
    for title, lines in class_results(found):
        print_table(title, columns, [[c.name, f"{c.examples:,}", str(c.clean), str(c.robust)] for c in lines])


def print_attacks(folder: Path, files: Iterable[Path], *, classes: bool, images: bool) -> None:
    """Every finished attack in the folder, with `classes` also per class; then the cost of the attacks in `files`."""
    from atent.report.tables import finished, result_lines

    found = finished(folder)
    print_results(result_lines(found))
    if classes:
        print_classes(found)
    print_costs(files, images)


def print_costs(files: Iterable[Path], images: bool) -> None:
    """A line for each attack: its cost and, if `images` were saved, their files."""
    from atent.storage.row_file import RowFile
    from atent.storage.rows import ATTACK

    for file in files:
        found = RowFile(ATTACK, file).read()
        kept = f"; images: {file.with_suffix('.npz')}, .png" if images else ""
        print(f"{found.header['label']} {found.header['threat']}: {found.cost}{kept}")
        if broken := Counter(row["by"] for row in found.rows if row.get("by")):
            print(f"  broken by {', '.join(f'{title} {count:,}' for title, count in broken.items())}")


def print_estimates(found: "Sequence[Estimated]", goal: "Goal") -> None:
    """The accuracy of the whole test set, a line for each threat, and what it took."""
    for one in found:
        outcome = goal.reached(one.estimate)
        print(one)
        if goal.claim is not None:
            print(f"at least {goal.claim:g} %: {outcome if outcome in ('accepted', 'refuted') else 'not settled'}")
        if goal.within is not None and one.estimate.half_width > goal.within:
            print(f"the half-width is {one.estimate.half_width:.2f}, not {goal.within:g}: the claim was settled first")
        print(f"{one.broken:,} of {one.drawn:,} images drawn from {one.survivors:,} survivors were broken")
        if one.first_cost is not None:
            print(f"all images: {one.first_cost}")
        print(f"sample: {one.cost}")


def print_signs(found: "Iterable[tuple[Threat, Sequence[str]]]") -> None:
    """Print the warnings of the checks at each threat, one per line."""
    for threat, signs in found:
        print(f"Checks at {threat}: {'' if signs else 'nothing suspicious'}".rstrip())
        for sign in signs:
            print(f"  warning: {sign}.")
