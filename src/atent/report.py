"""Tables made from rows: what a run folder's attacks found, and the worst case per example over them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from atent.evaluate import Rate, Row, clean_rate, rate, read_attack, robust_rate
from atent.threat import Threat


class Result(NamedTuple):
    """One line of a table: a network under an attack."""

    run: str
    data: str
    threat: str
    attack: str
    examples: int
    clean: Rate
    robust: Rate


def results(folder: Path) -> list[Result]:
    """Every finished attack of a run folder and, where several met the same examples, their worst case.

    Networks are told apart by their weights' hash where a folder has rows of several (a run trained further).
    """
    found: dict[tuple[str, str, str, int], list[tuple[str, list[Row]]]] = {}
    for path in sorted((folder / "attack").glob("*.jsonl")):
        header, rows = read_attack(path)
        if len(rows) == header["examples"]:
            key = (header["weights"], header["data"], str(Threat.parse(header["threat"])), len(rows))
            found.setdefault(key, []).append((header["label"], rows))
    several = len({weights for weights, *_ in found}) > 1
    lines = []
    for (weights, data, threat, count), attacks in found.items():
        run = f"{folder.name} ({weights[:6]})" if several else folder.name
        for label, rows in attacks:
            lines.append(Result(run, data, threat, label, count, clean_rate(rows), robust_rate(rows)))
        if len(attacks) > 1:
            worst = worst_case(rows for _, rows in attacks)
            lines.append(Result(run, data, threat, "worst case", count, lines[-1].clean, worst))
    return lines


def worst_case(attacks: Iterable[list[Row]]) -> Rate:
    """An example counts only if it withstood every attack."""
    return rate(all(row["robust"] for row in rows) for rows in zip(*attacks, strict=True))


def markdown(lines: list[Result]) -> str:
    """The table as it stands in the README."""
    head = "| network | data | threat | attack | images | clean % | robust % |\n|---|---|---|---|---:|---:|---:|"
    body = (
        f"| {line.run} | {line.data} | {line.threat} | {line.attack} | {line.examples:,} | "
        f"{100 * line.clean.value:.2f} | {line.robust} |"
        for line in lines
    )
    return "\n".join([head, *body])
