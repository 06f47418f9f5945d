"""What ends a command early: a user's mistake, told in one line with exit code 2, or a user's wish. And a doubt."""

import signal
from collections.abc import Iterable


class UserError(ValueError):
    """What was given, what is allowed, and where: one line, no traceback."""


class ThreatWarning(UserWarning):
    """A radius so large that another unit of it was probably meant."""


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """A signal asked the work to stop; its state is saved. `code` is the process' exit code."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.code = 128 + signum


def unknown(kind: str, name: object, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that is not in a table."""
    place = f" ({where})" if where else ""
    return UserError(f"unknown {kind} {str(name)!r}; known: {', '.join(sorted(known))}{place}")
