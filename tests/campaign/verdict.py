"""What a case may end with, and what counts as a failure."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BROKEN_PIPE, REFUSED, LAST_RESORT = 1, 2, 70
ALLOWED = (0, REFUSED, 130, 143)
SECONDS = 60.0  # a case that takes longer hangs
MEGABYTES = 700.0  # that a case may add to the memory of its process, at its peak


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code and output."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Outcome:
    """A case: what was done, in a line that a person can read, and its faults, none if it passed."""

    what: str
    faults: tuple[str, ...] = ()
    skipped: bool = False


Draw = random.Random
Play = Callable[[Draw, Path, Path], Outcome]  # the case's random source, what was prepared, an empty folder


@dataclass(frozen=True)
class Kind:
    """A kind of case. `prepare` fills a folder once; a worker plays `batch` cases and is then replaced."""

    name: str
    play: Play
    prepare: Callable[[Path], None]
    batch: int
    full: int  # cases of the full campaign
    short: int  # cases of the short form


def faults_of(ended: Ended, allowed: tuple[int, ...] = ALLOWED) -> list[str]:
    """A traceback, an exit code that means nothing, or a message of two lines."""
    lines = ended.err.splitlines()
    found = []
    if "Traceback (most recent call last)" in ended.err:
        found.append(f"traceback: {lines[-1][:300]}")
    if ended.code not in allowed:
        found.append(f"exit code {ended.code}: {(lines or [''])[-1][:300]}")
    errors = [k for k, line in enumerate(lines) if line.startswith("error: ")]
    if ended.code == REFUSED and not errors:
        found.append(f"exit code 2 without a message: {ended.err[-300:]!r}")
    if errors and errors[0] != len(lines) - 1:
        found.append(f"a message of {len(lines) - errors[0]} lines: {lines[errors[0]][:200]!r} ...")
    if errors and len(lines[errors[-1]]) > 3000:
        found.append(f"a message of {len(lines[errors[-1]])} characters")
    return found
