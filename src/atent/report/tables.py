"""Tables made from rows: the results of a run folder's attacks, and the worst case per example over them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from atent.storage.certificates import Certified
from atent.storage.row_file import finished_files, leave_out
from atent.storage.row_format import Content
from atent.storage.rows import ATTACK, Rate, Row, clean_rate, median_distance, rate, robust_rate, variant_of
from atent.threat import Threat

UNVERIFIED = "* Rows written by an older version, without checksums: not verified."


class Result(NamedTuple):
    """One line of a table: a network under an attack.

    `distance` is the median distance, for attacks that measure it. Rows without checksums are not `verified`.
    """

    run: str
    data: str
    threat: str
    attack: str
    examples: int
    clean: Rate
    robust: Rate
    distance: float | None = None
    verified: bool = True


class ClassResult(NamedTuple):
    """The accuracies of one class of images, in the worst case over the attacks."""

    name: str
    examples: int
    clean: Rate
    robust: Rate


class Group(NamedTuple):
    """Attacks on the same network with the same examples and the same threat."""

    run: str
    data: str
    threat: Threat
    classes: list[str]
    files: list[Path]
    attacks: list[Content[Row]]

    @property
    def verified(self) -> bool:
        return all(attack.verified for attack in self.attacks)

    @property
    def titles(self) -> list[str]:
        """The title of each attack; with its seed and batch where attacks of the same title differ in them."""
        headers = [attack.header for attack in self.attacks]
        titles = []
        for header in headers:
            same = [other for other in headers if other["label"] == header["label"]]
            differ = [key for key in ("seed", "batch") if len({str(other.get(key)) for other in same}) > 1]
            titles.append(", ".join([header["label"], *(f"{key} {header.get(key, 'unknown')}" for key in differ)]))
        return titles

    @property
    def clean(self) -> Rate:
        return clean_rate(self.attacks[0].rows)

    @property
    def robust(self) -> Rate:
        """The share of examples that are robust to every attack."""
        return worst_case(attack.rows for attack in self.attacks)


def finished(folder: Path, report: Callable[[str], None] = leave_out) -> list[Group]:
    """Every finished attack of a run folder, grouped. A damaged or unfinished file is left out, passed to `report`."""
    return grouped(folder, finished_files(ATTACK, folder, report))


def grouped(folder: Path, files: Iterable[tuple[Path, Content[Row]]]) -> list[Group]:
    """Attacks of a run folder, comparable ones grouped together, the smallest radius first.

    Where a folder has rows of several networks (a run trained further), the hash of the weights is added to the name,
    and so are the smoothing and a half precision.
    """
    found: dict[tuple[str, str, str, str, str, Threat, int], Group] = {}
    for path, attack in files:
        header, threat = attack.header, Threat.parse(attack.header["threat"])
        variant, images = variant_of(header), header.get("images", "")
        key = (header["weights"], header["model"], variant, header["data"], images, threat, len(attack.rows))
        name = f"{folder.resolve().name}{variant and f', {variant}'}"
        group = found.setdefault(key, Group(name, header["data"], threat, header.get("classes") or [], [], []))
        group.files.append(path)
        group.attacks.append(attack)
    several = len({weights for weights, *_ in found}) > 1
    named = [
        group._replace(run=f"{group.run} ({weights[:6]})") if several else group
        for (weights, *_), group in found.items()
    ]
    return sorted(named, key=lambda group: (group.run, group.data, group.threat.norm, group.threat.eps))


def results(folder: Path) -> list[Result]:
    """Every finished attack of a run folder and, where several attacked the same examples, their worst case."""
    return result_lines(finished(folder))


def result_lines(found: Iterable[Group]) -> list[Result]:
    """A line for each attack and, where several attacked the same examples, one for their worst case."""
    lines = []
    for group in found:
        place = (group.run, group.data, str(group.threat))
        for title, attack in zip(group.titles, group.attacks, strict=True):
            rows = attack.rows
            rates = (clean_rate(rows), robust_rate(rows))
            distance = median_distance(rows)
            lines.append(Result(*place, title, len(rows), *rates, distance, attack.verified))
        if len(group.attacks) > 1:
            worst = (len(rows), group.clean, group.robust)
            lines.append(Result(*place, "worst case", *worst, verified=group.verified))
    return lines


def worst_case(attacks: Iterable[list[Row]]) -> Rate:
    """The share of examples that are robust to every attack."""
    return rate(robust_to_all(attacks).values())


def robust_to_all(attacks: Iterable[list[Row]]) -> dict[int, bool]:
    """For the index of each example, whether it is robust to every attack."""
    first, *others = ({row["index"]: row["robust"] for row in rows} for rows in attacks)
    return {index: robust and all(other[index] for other in others) for index, robust in first.items()}


def class_results(found: Iterable[Group]) -> Iterator[tuple[str, list[ClassResult]]]:
    """For each threat: a title, and the accuracies of each class in the worst case over the attacks."""
    for group in found:
        rows = group.attacks[0].rows
        robust = robust_to_all(attack.rows for attack in group.attacks)
        lines = []
        for label in sorted({row["label"] for row in rows}):
            mine = [row for row in rows if row["label"] == label]
            name = group.classes[label] if label < len(group.classes) else str(label)
            lines.append(ClassResult(name, len(mine), clean_rate(mine), rate(robust[row["index"]] for row in mine)))
        several = len(group.attacks) > 1
        how = f"worst case of {len(group.attacks)} attacks" if several else group.titles[0]
        title = f"{group.run}: {group.data} test images by class, {group.threat}, {how}"
        yield f"{title}{mark(group.verified)}", lines


def mark(verified: bool) -> str:
    """The mark after the name of rows without checksums; `UNVERIFIED` below the table explains it."""
    return "" if verified else " *"


def markdown(lines: list[Result]) -> str:
    """The table as in the docs; the median distance is a column if it was measured."""
    measured = any(line.distance is not None for line in lines)
    head = "| network | data | threat | attack | images | clean % | robust % |\n|---|---|---|---|---:|---:|---:|"
    if measured:
        head = head.replace("\n", " median distance |\n") + "---:|"
    body = (
        f"| {line.run} | {line.data} | {line.threat} | {line.attack}{mark(line.verified)} | {line.examples:,} | "
        f"{100 * line.clean.value:.2f} | {line.robust} |" + (f" {distance_words(line)} |" if measured else "")
        for line in lines
    )
    return "\n".join([head, *body, *note(all(line.verified for line in lines))])


def certified_markdown(found: Sequence[Certified]) -> str:
    """Certified accuracies as in the docs, one line per radius."""
    columns = "| network | data | sigma | n | images | l2 radius | covers | certified % |"
    head = f"{columns}\n|---|---|---:|---:|---:|---:|---|---:|"
    body = (
        f"| {one.run}{mark(one.verified)} | {one.header['data']} | {one.header['sigma']:g} | {one.header['n']:,} | "
        f"{len(one.rows):,} | {radius:.4g} | {threat} | {one.accuracy(radius)} |"
        for one in found
        for radius, threat in one.radii
    )
    return "\n".join([head, *body, *note(all(one.verified for one in found))])


def note(verified: bool) -> list[str]:
    """The lines below a Markdown table that has a mark."""
    return [] if verified else ["", f"\\{UNVERIFIED}"]


def distance_words(line: Result) -> str:
    """The median distance as text; empty for attacks that do not measure it."""
    return "" if line.distance is None else f"{line.distance:.3g}"
