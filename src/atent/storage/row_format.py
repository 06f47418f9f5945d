"""The format of a file of rows: a header with every setting, then batches of rows, each with a closing line.

The closing line holds the cost of the batch and a checksum. The checksums form a chain: each covers the previous one
(the first: the line of the header) and the bytes of its batch up to itself. So a line or a batch that is lost,
duplicated, swapped or changed is detected. Older files have no checksums, and the oldest have no closing lines.
"""

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from atent.methods import Count, Scale, Whole, explain
from atent.threat import Threat

ABOUT = ("version", "classes", "checksum", "confidence")  # in a header, but not settings: they do not change the attack
ADDED = {  # fields of attacks that older rows do not have, and the values with which these are what they were
    "pgd": {"decay": 1.0, "leak": 0.0},
    "apgd": {"leak": 0.0},
}
SEALED = {"checksum": "sha256"}  # in the header of a file whose batches end with checksums
_SURROGATE = re.compile(rb"\\ud[89a-f][0-9a-f]{2}")  # in names that are not UTF-8; pydantic does not accept them
_CHECKSUM = re.compile(rb'(.*)"sha256": "([0-9a-f]{16})"\}\n')

T = TypeVar("T")


class Indexed(TypedDict):
    """Every row has the index of its image in the test set."""

    index: Whole


class Header(TypedDict):
    """The fields of every header. The rows are of every `every`-th image, the first `examples` of them.

    `amp` is the half precision in which the network ran; without it, in float32.
    With an `order` the rows are of these images in this order, and the first of them alone are a result: a sample.
    """

    label: str
    data: str
    examples: Count
    model: str
    weights: str
    every: NotRequired[Count]
    order: NotRequired[list[Whole]]
    version: NotRequired[str]
    classes: NotRequired[list[str]]
    images: NotRequired[str]
    amp: NotRequired[Literal["bf16", "fp16"]]
    checksum: NotRequired[Literal["sha256"]]


class Cost(NamedTuple):
    """The number of images that an attack passed forward and backward through the network, and its time."""

    forward: Whole = 0
    backward: Whole = 0
    seconds: Scale = 0.0

    def __str__(self) -> str:
        return f"{self.forward:,} images forward, {self.backward:,} backward, {self.seconds:,.1f} s"


@with_config(ConfigDict(extra="forbid"))
class Closing(TypedDict):
    """The last line of a batch. It has no cost if the cost was not recorded."""

    cost: NotRequired[Cost]
    sha256: NotRequired[str]


R = TypeVar("R", bound=Indexed)
_CLOSING = TypeAdapter(Closing)


@dataclass(frozen=True)
class Kind(Generic[R]):
    """The files of one command: the fields of their headers and rows, and the folder in a run if not the command's."""

    command: str
    header: TypeAdapter[Any]
    row: TypeAdapter[R]
    own_folder: str = ""

    @property
    def folder(self) -> str:
        return self.own_folder or self.command


class Content(NamedTuple, Generic[R]):
    """The content of a file: the intact rows, in the order of the images, and what is wrong with the lines after them.

    `size` is the number of bytes of the header and the intact batches; `checksum` is the last checksum (without a
    batch: the line of the header).
    """

    header: dict[str, Any]
    rows: list[R]
    cost: Cost
    verified: bool
    fault: str
    size: int = 0
    checksum: bytes = b""

    @property
    def complete(self) -> bool:
        """Whether no rows can follow."""
        return not self.fault and len(self.rows) == self.header["examples"]

    @property
    def finished(self) -> bool:
        """Whether the rows are a result: all of them, or the first of a sample, even none."""
        return self.complete or (not self.fault and "order" in self.header)


class Damage(Exception):  # noqa: N818 (of a file, not an error of the program)
    """What is wrong with the lines of a file."""


def _as_before(value: Any) -> Any:
    """Without fields added to a method later, where they have the value with which it is what it was before."""
    if isinstance(value, Mapping):
        added = ADDED.get(str(value.get("name")), {})
        return {key: _as_before(inside) for key, inside in value.items() if key not in added or inside != added[key]}
    return [*map(_as_before, value)] if isinstance(value, list | tuple) else value


def settings(header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a header that determine the rows, the same for all spellings of a threat."""
    found = {key: _as_before(value) for key, value in header.items() if key not in ABOUT}
    if "threat" in found:
        found["threat"] = Threat.parse(found["threat"]).exact
    if "radii" in found:  # each with the threat that it covers, or ""; the first versions wrote six digits
        covered = [(radius, name and Threat.parse(name)) for radius, name in found["radii"]]
        found["radii"] = [[radius, ball and f"{ball.norm}:{ball.eps:.6g}"] for radius, ball in covered]
    return found


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a file, without the block of zeros that a power cut may leave at its end."""
    return io.BytesIO(content.rstrip(b"\0")).readlines()


def to_line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value) + "\n").encode()


def close_batch(before: bytes, lines: Sequence[bytes], cost: Cost | None) -> tuple[bytes, bytes]:
    """The closing line of a batch and the checksum in it; `before` is the previous checksum of the chain."""
    begin = b"{" if cost is None else json.dumps({"cost": cost._asdict()})[:-1].encode() + b", "
    checksum = _chained(before, [*lines, begin])
    return begin + b'"sha256": "' + checksum + b'"}\n', checksum


def parse(kind: Kind[R], lines: Sequence[bytes]) -> Content[R]:
    """Parse the lines of a file. Raises `Damage` if the first line is not a header of this kind."""
    first, *others = lines or [b""]
    try:
        kind.header.validate_json(_SURROGATE.sub(b"?", first), strict=True)
        header = json.loads(first)
    except (ValueError, RecursionError):
        raise Damage("its first line is not a header") from None
    if not first.endswith(b"\n"):
        raise Damage("its first line is not a header")
    return _parse_sealed(kind, header, first, others) if "checksum" in header else _parse_older(kind, header, others)


def _parse_sealed(kind: Kind[R], header: dict[str, Any], first: bytes, lines: list[bytes]) -> Content[R]:
    """The intact batches, up to the first damaged one."""
    rows, costs = list[R](), list[Cost]()
    missing, checksum, size, done, fault = _indices(header), first, len(first), 0, ""
    try:
        for number, line in enumerate(lines):
            if not (found := _CHECKSUM.fullmatch(line)):
                continue
            batch = lines[done:number]
            if _chained(checksum, [*batch, found[1]]) != found[2]:
                raise Damage(f"lines {done + 2} to {number + 2} do not match their checksum")
            closing = _typed(_CLOSING, line, number)
            rows += _rows(kind, batch, done, missing)
            costs.append(closing.get("cost", Cost()))
            missing, checksum, done = missing[len(batch) :], found[2], number + 1
            size += sum(map(len, batch)) + len(line)
        # A kill leaves the beginning of a batch: rows, the last one possibly incomplete, and no closing line.
        left = lines[done:]
        if left and not missing:
            raise Damage(f"line {done + 2} follows the rows of all images")
        _rows(kind, [line for line in left if line.endswith(b"\n")], done, missing)
    except Damage as damage:
        fault = str(damage)
    return Content(header, rows, _sum(costs), True, fault, size, checksum)


def _parse_older(kind: Kind[R], header: dict[str, Any], lines: list[bytes]) -> Content[R]:
    """The rows of a file without checksums. The only damage that can be detected is missing or duplicate rows."""
    rows, costs, fault = list[R](), list[Cost](), ""
    expected, closed = _indices(header), False
    try:
        for number, line in enumerate(lines):
            if closed := line.startswith(b'{"cost"'):
                closing = _typed(_CLOSING, line, number)
                if "sha256" in closing:
                    raise Damage(f"line {number + 2} has a checksum, but the header has no entry 'checksum'")
                costs.append(closing["cost"])
            elif line.endswith(b"\n"):
                rows.append(_typed(kind.row, line, number))
        rows.sort(key=lambda row: row["index"])
        if [row["index"] for row in rows] != list(expected[: len(rows)]):
            raise Damage("it does not have one row for each image")
        whole = lines[-1].endswith(b"\n") and (closed or not costs) if lines else True
        if len(rows) == len(expected) and not whole:
            raise Damage("its last line is missing or incomplete")
    except Damage as damage:
        fault = str(damage)
    return Content(header, rows, _sum(costs), False, fault)


def _rows(kind: Kind[R], lines: list[bytes], done: int, missing: Sequence[int]) -> list[R]:
    """The rows of the next images; the first is line `done` after the header."""
    rows = [_typed(kind.row, line, done + k) for k, line in enumerate(lines)]
    if [row["index"] for row in rows] != list(missing[: len(rows)]):
        raise Damage(f"the rows from line {done + 2} on are not those of the next images")
    return rows


def _typed(adapter: TypeAdapter[T], line: bytes, number: int) -> T:
    try:
        return adapter.validate_json(line, strict=True)
    except ValidationError as error:
        raise Damage(explain(error, f"line {number + 2}")) from None


def _indices(header: Mapping[str, Any]) -> Sequence[int]:
    """The images of the rows, in the order of the rows."""
    if "order" in header:
        return list(header["order"])
    every = header.get("every", 1)
    return range(0, header["examples"] * every, every)


def _chained(before: bytes, parts: Sequence[bytes]) -> bytes:
    return hashlib.sha256(before + b"".join(parts)).hexdigest()[:16].encode()


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(sum(c.forward for c in costs), sum(c.backward for c in costs), sum(c.seconds for c in costs))
