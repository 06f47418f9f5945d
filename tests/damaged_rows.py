"""Small files of rows of both kinds, what tables show of them, and ways to damage them, line by line."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from atent.attacks import Pgd
from atent.evaluation.attack import attack_target
from atent.evaluation.certify import certify_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.models import Shape
from atent.report.tables import finished, result_lines
from atent.smoothing.stopping import Smoothing
from atent.storage.certificates import CERTIFY, certified
from atent.storage.row_format import Kind
from atent.storage.rows import ATTACK
from toys import THREATS, small_network, stand_in

Lines = list[str]
Damage = Callable[[Lines], Lines]
KINDS: dict[str, Kind[Any]] = {"attack": ATTACK, "certify": CERTIFY}
IMAGES = stand_in(Shape((1, 6, 6), 3), 20)
HOW = Smoothing(0.25, n=1000, radii=(0.0, 0.1))


def run(kind: str, folder: Path) -> Path:
    """Attack 20 images in batches of 5, or certify them, a few at a time, as every third image of a test set."""
    target = Target(small_network(), "abc", "toy", IMAGES, "toy", None, Path("never"))
    if kind == "attack":
        return attack_target(target, Planned.of(Pgd(steps=2), {"name": "pgd"}, THREATS[0]), folder, batch=5)
    return certify_target(target, HOW, [(0.0, ""), (0.1, "")], folder, every=3, batch=500)


@cache
def _undisturbed(kind: str) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        path = run(kind, Path(place))
        return path.name, path.read_bytes()


def finished_file(kind: str, folder: Path) -> Path:
    """What `run` makes in a folder, without its work."""
    name, content = _undisturbed(kind)
    path = folder / kind / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def accuracies(folder: Path) -> list[tuple[float, float]]:
    """What tables show of a folder, of attacks and certifications alike."""
    attacked = [(line.clean.value, line.robust.value) for line in result_lines(finished(folder))]
    return attacked + [(one.accuracy(0).value, one.accuracy(0.1).value) for one in certified(folder)]


def is_row(line: str) -> bool:
    return line.startswith('{"index"')


def write_lines(path: Path, lines: Lines) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def rows_of(path: Path) -> Lines:
    return [line for line in path.read_text().splitlines() if is_row(line)]


def batches(lines: Lines) -> list[Lines]:
    found: list[Lines] = [[]]
    for line in lines[1:]:
        found[-1].append(line)
        if not is_row(line):
            found.append([])
    return found[:-1]


def joined(lines: Lines, parts: list[Lines]) -> Lines:
    return [lines[0], *(line for part in parts for line in part)]


def rows_doubled(lines: Lines) -> Lines:
    """The first half of the rows twice, instead of the second half."""
    rows = iter([line for line in lines if is_row(line)][:10] * 2)
    return [next(rows) if is_row(line) else line for line in lines]


def row_copied(lines: Lines) -> Lines:
    return [*lines[:3], lines[1], *lines[4:]]


def rows_swapped(lines: Lines) -> Lines:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def rows_renumbered(lines: Lines) -> Lines:
    """Two rows swapped, but for their indices."""
    one, two = (json.loads(line) for line in lines[1:3])
    one["index"], two["index"] = two["index"], one["index"]
    return [lines[0], json.dumps(two), json.dumps(one), *lines[3:]]


def batch_doubled(lines: Lines) -> Lines:
    first, second, _, *others = batches(lines)
    return joined(lines, [first, second, second, *others])


def batches_swapped(lines: Lines) -> Lines:
    first, second, third, *others = batches(lines)
    return joined(lines, [first, third, second, *others])


def batch_lost(lines: Lines) -> Lines:
    first, _, *others = batches(lines)
    return joined(lines, [first, *others])


def batch_added(lines: Lines) -> Lines:
    return joined(lines, [*batches(lines), batches(lines)[-1]])


def closing_line_lost(lines: Lines) -> Lines:
    first, *others = batches(lines)
    return joined(lines, [first[:-1], *others])


def row_lost(lines: Lines) -> Lines:
    return [*lines[:2], *lines[3:]]


def changed(line: str, **changes: Any) -> str:
    return json.dumps(json.loads(line) | changes)


def field_changed(lines: Lines) -> Lines:
    return [*lines[:2], changed(lines[2], label=2), *lines[3:]]


def type_changed(lines: Lines) -> Lines:
    return [*lines[:2], changed(lines[2], label=1.0), *lines[3:]]


def cost_changed(lines: Lines) -> Lines:
    return [line.replace('"backward": ', '"backward": 1') for line in lines]


DAMAGES: dict[str, Damage] = {
    "rows doubled": rows_doubled,
    "row copied": row_copied,
    "rows swapped": rows_swapped,
    "rows renumbered": rows_renumbered,
    "batch doubled": batch_doubled,
    "batches swapped": batches_swapped,
    "batch lost": batch_lost,
    "batch added": batch_added,
    "closing line lost": closing_line_lost,
    "field changed": field_changed,
    "type changed": type_changed,
    "cost changed": cost_changed,
    "row lost": row_lost,
    "last row lost": lambda lines: [*lines[:-2], lines[-1]],
    "row added": lambda lines: [*lines, lines[1]],
    "row of half a batch lost": lambda lines: joined(lines, batches(lines)[:1]) + batches(lines)[1][1:-1],
    "no JSON": lambda lines: [*lines[:4], "{", *lines[4:]],
    "classes changed": lambda lines: [changed(lines[0], classes=["a", "b", "c"]), *lines[1:]],
}
HEADERS: dict[str, Damage] = {
    "other weights": lambda lines: [changed(lines[0], weights="other"), *lines[1:]],
    "fewer examples": lambda lines: [changed(lines[0], examples=10), *lines[1:]],
    "another type": lambda lines: [changed(lines[0], examples="20"), *lines[1:]],
    "header cut short": lambda lines: [lines[0][:-9], *lines[1:]],
    "header lost": lambda lines: lines[1:],
    "nothing left": lambda lines: lines[:0],
}
KILLS: dict[str, Damage] = {
    "before the last closing line": lambda lines: lines[:-1],
    "after a batch": lambda lines: joined(lines, batches(lines)[:-1]),
    "after a row": lambda lines: joined(lines, batches(lines)[:2]) + batches(lines)[2][:1],
    "after the header": lambda lines: lines[:1],
}


def older(lines: Lines, costs: bool) -> Lines:
    """As files were before checksums, and before costs."""
    parsed = [json.loads(line) for line in lines]
    without = [{key: value for key, value in line.items() if key not in ("sha256", "checksum")} for line in parsed]
    return [json.dumps(line) for line in without if costs or "cost" not in line]
