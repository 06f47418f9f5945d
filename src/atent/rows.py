"""Rows: a JSONL file per attack. A header with every setting, then a row per example and a line of cost per batch."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, NotRequired, TypedDict

from scipy.stats import binomtest

from atent.errors import UserError
from atent.runs import read_rows, write_rows

ABOUT = ("version", "classes")  # in a header, but no setting: another value is not another attack


class Row(TypedDict):
    """One attacked example: what the network said of x and of x_adv, and how far x_adv is.

    Attacks that look for the nearest misclassified point also say its `distance`, null where they found none.
    """

    index: int
    label: int
    clean: int
    adversarial: int
    size: float
    robust: bool
    distance: NotRequired[float | None]


class Cost(NamedTuple):
    """Images passed forward and backward through the network by an attack, and the time it took."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.forward:,} images forward, {self.backward:,} backward, {self.seconds:,.1f} s"


class Rate(NamedTuple):
    """A share of examples with its 95 % Wilson interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def rate(hits: Iterable[bool]) -> Rate:
    """The share of hits, with its Wilson interval."""
    values = list(hits)
    return rate_of(sum(values) / len(values), len(values))


def rate_of(share: float, count: int) -> Rate:
    """A share of `count` examples, with its Wilson interval."""
    interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return Rate(share, float(interval.low), float(interval.high))


def clean_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["clean"] == row["label"] for row in rows)


def robust_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["robust"] for row in rows)


def median_distance(rows: Iterable[Row]) -> float | None:
    """The median over examples that are right; infinite where none was found for half of them. None: not measured."""
    right = [row["distance"] for row in rows if "distance" in row and row["clean"] == row["label"]]
    return median(float("inf") if distance is None else distance for distance in right) if right else None


def attack_file(folder: Path, header: Mapping[str, Any]) -> Path:
    """Where the rows of an attack with these settings go."""
    return rows_file(folder / "attack", header)


def rows_file(folder: Path, header: Mapping[str, Any]) -> Path:
    """A name that is readable, and different for different settings."""
    words = re.sub(r"[^a-z0-9.]+", "-", f"{header['label']} {header.get('threat', '')} {header['data']}".lower()).strip(
        "-"
    )
    settings = {key: value for key, value in header.items() if key not in ABOUT}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"{words[:100]}-{digest}.jsonl"


def append_batch(path: Path, rows: Iterable[Mapping[str, Any]], cost: Cost) -> None:
    """Append a batch's rows and their cost in one go."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in [*rows, {"cost": cost._asdict()}]))


def finished_rows(path: Path, header: Mapping[str, Any]) -> int:
    """How many rows of this very attack are in the file; what a kill left of a batch is cut off.

    A finished file stays, whichever version of ours wrote it; an unfinished one of another version starts anew.
    """
    if not path.exists():
        return 0
    found = list(read_rows(path))
    if not found or any(found[0].get(key) != value for key, value in header.items() if key not in ABOUT):
        return 0
    ends = [place for place, line in enumerate(found) if "cost" in line]
    rows = sum("index" in line for line in found)
    if rows == header["examples"] and (not ends or ends[-1] == len(found) - 1):  # older files tell no cost
        return rows
    if found[0].get("version") != header.get("version") or not ends:
        return 0
    kept = found[: ends[-1] + 1]
    write_rows(path, kept)
    return sum("index" in line for line in kept)


def read_attack(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The header and the rows of an attack's file."""
    header, rows = read_headed(path, "attack", ("label", "threat", "data", "examples", "model", "weights"), Row)
    return header, rows  # type: ignore[return-value]


def read_headed(
    path: Path, command: str, settings: Iterable[str], row: type
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header of a file of ours, which must have these settings, and its rows, which must have a row's fields."""
    lines = list(read_rows(path))
    if not lines or not set(settings) <= lines[0].keys():
        raise UserError(f"{path} is not a file of atent {command}: its first line is no header")
    rows = [line for line in lines[1:] if "index" in line]
    for line in rows:
        if missing := row.__required_keys__ - line.keys():  # type: ignore[attr-defined]
            raise UserError(f"{path}: the row of image {line['index']} has no {min(missing)}")
    return lines[0], rows


def read_cost(path: Path) -> Cost:
    """The cost of all batches together, in however many parts the attack was run."""
    costs = [Cost(**line["cost"]) for line in read_rows(path) if "cost" in line]
    return Cost(
        sum(cost.forward for cost in costs), sum(cost.backward for cost in costs), sum(cost.seconds for cost in costs)
    )
