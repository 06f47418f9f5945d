"""JSON files of ours, checked when they are read: a file that was damaged or edited is named, with the wrong field."""

import json
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from atent.errors import UserError
from atent.methods import Count, Whole, explain
from atent.storage.files import read_json, read_rows

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(ge=0, le=1e300)]  # an integer of many digits is no float


class Environment(TypedDict):
    """environment.json: the environment of each start of a training."""

    starts: NotRequired[list[dict[str, Any]]]  # not in the first versions


class Place(TypedDict):
    """Where the user's own data was: its path, and the way to it from the run folder."""

    path: NotRequired[str]
    from_run: NotRequired[str]


class DataRecord(TypedDict):
    """data.json: the record of a folder of images, of an .npz file, or of images given in Python."""

    sha256: NotRequired[str]
    image: NotRequired[tuple[Count, Count, Count]]
    crop: NotRequired[bool]
    white: NotRequired[Count]
    train: NotRequired[dict[str, list[str]]]
    test: NotRequired[dict[str, list[str]]]
    classes: NotRequired[list[str]]
    place: NotRequired[Place]


@with_config(ConfigDict(extra="forbid"))
class Epoch(TypedDict):
    """A finished epoch in the log and the checkpoint; `clean` and `robust` are accuracies on held-out images."""

    epoch: int
    loss: float
    train_robust: float
    radius: float
    seconds: float
    best: bool
    clean: NotRequired[float]
    robust: NotRequired[float]
    examples: NotRequired[int]
    train_clean: NotRequired[float]  # of as many training images, not augmented and not attacked
    broken_by: NotRequired[dict[str, int]]  # of a cascade: how many images each attack broke
    masked: NotRequired[bool]
    plateau: NotRequired[bool]
    collapsed: NotRequired[bool]
    recoveries: NotRequired[int]  # so far, if any


class LogLine(TypedDict):
    """What is read of a line of train.jsonl; lines of older versions have fewer fields, and some others."""

    epoch: Whole
    loss: NotRequired[Annotated[float, Field(le=1e300)]]
    seconds: NotRequired[Positive]
    best: NotRequired[bool]
    clean: NotRequired[Share]
    robust: NotRequired[Share]
    examples: NotRequired[Count]
    radius: NotRequired[Positive]
    train_robust: NotRequired[Share]
    train_clean: NotRequired[Share]


class Checks(TypedDict):
    """A file of findings: what was checked, and the warnings."""

    weights: str
    data: str
    threat: str
    warnings: list[str]
    smooth: NotRequired[float]
    draws: NotRequired[Count]
    amp: NotRequired[str]
    judged: NotRequired[str]


ENVIRONMENT, DATA, CHECKS = TypeAdapter(Environment), TypeAdapter(DataRecord), TypeAdapter(Checks)
_LOG_LINE = TypeAdapter(LogLine)


def read_typed(path: Path, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON object of a file, as it stands there, if its fields have the types of this kind."""
    found = read_json(path)
    _check(found, kind, str(path))
    return found


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of train.jsonl."""
    rows = list(read_rows(path))
    for number, row in enumerate(rows, start=1):
        _check(row, _LOG_LINE, f"{path}: line {number}")
    return rows


def _check(found: dict[str, Any], kind: TypeAdapter[Any], where: str) -> None:
    try:
        # From JSON, where a list is also a tuple. pydantic refuses the surrogates of names that are not UTF-8.
        words = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
        kind.validate_json(words, strict=True)
    except ValidationError as error:
        raise UserError(f"{explain(error, where)}; the file is damaged, or was edited") from None
