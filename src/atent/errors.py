"""The one exception that means "the input is wrong", shown to a user as a single line with exit code 2."""

from collections.abc import Iterable


class UserError(ValueError):
    """What was given, what is allowed, and where: one line, no traceback."""


def unknown(kind: str, name: object, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that is not in a table."""
    place = f" ({where})" if where else ""
    return UserError(f"unknown {kind} {str(name)!r}; known: {', '.join(sorted(known))}{place}")
