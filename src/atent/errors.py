"""Exceptions that end a command early: a user's error (one line, exit code 2) or a stop signal. And a warning."""

import re
import signal
from collections.abc import Iterable
from difflib import get_close_matches

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks and what else moves a terminal's cursor
_LONGEST = 2800  # characters of a message: some values given are much longer


def one_line(text: str) -> str:
    """The text without line breaks and control characters."""
    return _BREAKS.sub(" ", text).strip()


def shown(value: object, most: int = 100) -> str:
    """The repr of any value, cut where it gets long."""
    try:
        text = one_line(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists of thousands of levels
        text = f"({type(value).__name__} that is too long to print)"
    return text if len(text) <= most else f"{text[:most]}..."


def reason_of(error: BaseException) -> str:
    """The first line of an exception's message; of an exception without one, its name."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0])[:300] if lines else type(error).__name__


class UserError(ValueError):
    """A user's error. Its message is one line: the value given, the values allowed, the place. No traceback."""

    def __init__(self, message: str) -> None:
        text = one_line(message)
        half = _LONGEST // 2
        super().__init__(text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}")


class ThreatWarning(UserWarning):
    """The radius is so large that the user probably meant another unit (8/255 instead of 8)."""


class Interrupted(Exception):  # noqa: N818 (not an error)
    """A signal stopped the work: after its state was saved or, with `now`, at once. `kept` is what is on the disk.

    `code` is the exit code of the process.
    """

    def __init__(self, signum: int, kept: str = "", *, now: bool = False) -> None:
        how = "stopped now; kept" if now else f"stopped by {signal.Signals(signum).name}; saved"
        super().__init__(f"{how}{kept and f': {kept}'}")
        self.code = 128 + signum


class LostProcess(Exception):  # noqa: N818 (as for `Interrupted`)
    """Another process of the same job ended, or cannot be reached."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"another process of this job was lost ({reason}). Run the same command to resume.")


def unknown(kind: str, name: object, known: Iterable[str], where: str = "", also: Iterable[str] = ()) -> UserError:
    """The error for a name that a table does not have. The name that was probably meant may also be one of `also`."""
    known, place = sorted(known), f" ({where})" if where else ""
    near = get_close_matches(str(name)[:100], [*known, *also], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {kind} {shown(str(name))}; {hint}known: {', '.join(known)}{place}")
