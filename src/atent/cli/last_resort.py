"""An exception that no command foresaw: one line for the user, and the traceback in a file that the line names."""

import os
import sys
import sysconfig
import tempfile
import traceback
from pathlib import Path

from atent.errors import reason_of

UNFORESEEN = 70  # EX_SOFTWARE of sysexits.h
_FULL = ("allocate memory", "out of memory", "not enough memory")  # torch's RuntimeErrors


def last_words(error: Exception) -> tuple[int, str]:
    """The exit code and the line for an exception: 2 if memory or code of the user is the reason, else 70."""
    what = f"{type(error).__name__}: {reason_of(error)}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _FULL)):
        return 2, f"not enough memory ({reason_of(error)}); a smaller batch, smaller images or fewer draws need less"
    where = f"the traceback is in {_kept(error)}"
    if place := _users_place(error):
        return 2, f"{place}: {what}; {where}"
    return UNFORESEEN, f"unforeseen {what}; this is a fault of atent, please report it; {where}"


def _kept(error: Exception) -> str:
    """The file that has the traceback; without a disk to write to, its last place."""
    text = f"{' '.join(sys.argv)}\n{''.join(traceback.format_exception(error))}"
    try:
        handle, name = tempfile.mkstemp(prefix="atent-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"no file, since none could be written; it ends in {last.filename}:{last.lineno}"
    return name


def _users_place(error: Exception) -> str:
    """The innermost line of the user's own code that led to the exception; empty if there is none."""
    ours = Path(__file__).parents[1]
    installed = [Path(path) for path in (*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix) if path]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and ours not in path.parents and not any(root in path.parents for root in installed):
            if Path(sys.argv[0]).resolve() == path.resolve() or path.name == "__main__.py":
                continue  # the program itself
            return f"{path}:{frame.lineno}, in {frame.name}"
    return ""
