"""Tables made from rows: what a run folder's attacks found, and the worst case per example over them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from atent.certify import Certified
from atent.rows import Rate, Row, clean_rate, median_distance, rate, read_attack, robust_rate
from atent.threat import Threat


class Result(NamedTuple):
    """One line of a table: a network under an attack. `distance` is the median one, of attacks that measure it."""

    run: str
    data: str
    threat: str
    attack: str
    examples: int
    clean: Rate
    robust: Rate
    distance: float | None = None


class ClassResult(NamedTuple):
    """A class of a network's images, under the worst case of the attacks that met them."""

    name: str
    examples: int
    clean: Rate
    robust: Rate


class Met(NamedTuple):
    """Attacks that met the same examples of the same network under the same threat: (label, rows) each."""

    run: str
    data: str
    threat: Threat
    classes: list[str]
    attacks: list[tuple[str, list[Row]]]


def finished(folder: Path) -> list[Met]:
    """Every finished attack of a run folder, those that can be compared together, the smallest radius first.

    Networks are told apart by their weights' hash where a folder has rows of several (a run trained further).
    """
    found: dict[tuple[str, str, str, str, str, Threat, int], Met] = {}
    for path in sorted((folder / "attack").glob("*.jsonl")):
        header, rows = read_attack(path)
        if len(rows) == header["examples"]:
            threat = Threat.parse(header["threat"])
            judged, images = header.get("judged", ""), header.get("images", "")
            key = (header["weights"], header["model"], judged, header["data"], images, threat, len(rows))
            name = f"{folder.resolve().name}{judged and f', {judged}'}"
            met = found.setdefault(key, Met(name, header["data"], threat, header.get("classes") or [], []))
            met.attacks.append((header["label"], rows))
    several = len({weights for weights, *_ in found}) > 1
    named = [met._replace(run=f"{met.run} ({weights[:6]})") if several else met for (weights, *_), met in found.items()]
    return sorted(named, key=lambda met: (met.run, met.data, met.threat.norm, met.threat.eps))


def results(folder: Path) -> list[Result]:
    """Every finished attack of a run folder and, where several met the same examples, their worst case."""
    lines = []
    for met in finished(folder):
        place = (met.run, met.data, str(met.threat))
        for label, rows in met.attacks:
            rates = (clean_rate(rows), robust_rate(rows))
            lines.append(Result(*place, label, len(rows), *rates, median_distance(rows)))
        if len(met.attacks) > 1:
            worst = worst_case(rows for _, rows in met.attacks)
            lines.append(Result(*place, "worst case", len(rows), lines[-1].clean, worst))
    return lines


def worst_case(attacks: Iterable[list[Row]]) -> Rate:
    """An example counts only if it withstood every attack."""
    return rate(withstood(attacks))


def withstood(attacks: Iterable[list[Row]]) -> list[bool]:
    """For each example, whether it withstood every attack."""
    return [all(row["robust"] for row in rows) for rows in zip(*attacks, strict=True)]


def class_results(folder: Path) -> Iterator[tuple[str, list[ClassResult]]]:
    """For each threat: a title, and accuracies class by class in the worst case of the attacks."""
    for met in finished(folder):
        labels = [label for label, _ in met.attacks]
        rows = met.attacks[0][1]
        robust = withstood(rows for _, rows in met.attacks)
        lines = []
        for label in sorted({row["label"] for row in rows}):
            mine = [k for k, row in enumerate(rows) if row["label"] == label]
            name = met.classes[label] if label < len(met.classes) else str(label)
            clean = clean_rate(rows[k] for k in mine)
            lines.append(ClassResult(name, len(mine), clean, rate(robust[k] for k in mine)))
        how = labels[0] if len(labels) == 1 else f"worst case of {len(labels)} attacks"
        yield f"{met.run}: {met.data} test images by class, {met.threat}, {how}", lines


def markdown(lines: list[Result]) -> str:
    """The table as it stands in the README; the median distance is a column where it was measured."""
    measured = any(line.distance is not None for line in lines)
    head = "| network | data | threat | attack | images | clean % | robust % |\n|---|---|---|---|---:|---:|---:|"
    if measured:
        head = head.replace("\n", " median distance |\n") + "---:|"
    body = (
        f"| {line.run} | {line.data} | {line.threat} | {line.attack} | {line.examples:,} | "
        f"{100 * line.clean.value:.2f} | {line.robust} |" + (f" {distance_words(line)} |" if measured else "")
        for line in lines
    )
    return "\n".join([head, *body])


def certified_markdown(found: Iterable[Certified]) -> str:
    """Certified accuracies as they stand in the README, a line for each radius."""
    columns = "| network | data | sigma | n | images | l2 radius | covers | certified % |"
    head = f"{columns}\n|---|---|---:|---:|---:|---:|---|---:|"
    body = (
        f"| {one.run} | {one.header['data']} | {one.header['sigma']:g} | {one.header['n']:,} | {len(one.rows):,} | "
        f"{radius:.4g} | {threat} | {one.accuracy(radius)} |"
        for one in found
        for radius, threat in one.radii
    )
    return "\n".join([head, *body])


def distance_words(line: Result) -> str:
    """The median distance as text; empty for attacks that do not measure it."""
    return "" if line.distance is None else f"{line.distance:.3g}"
