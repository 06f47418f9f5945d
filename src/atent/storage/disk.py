"""The few calls that change a file. They reach the disk, not only the system's memory: a power cut loses nothing.

Everything else writes through them, so that the campaign (tests/campaign) can end the process at each of them.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from atent.errors import UserError


def write(handle: int, content: bytes) -> None:
    """Write all of it to an open file."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left[: 1 << 30]) :]


def sync(handle: int) -> None:
    """Wait until the content of an open file is on the disk."""
    os.fsync(handle)


def rename(old: Path, new: Path) -> None:
    """Give a file another name, in place of the file that has it."""
    old.replace(new)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a renamed file is safe only then."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot, and write names at once
            sync(handle)
    finally:
        os.close(handle)


def check_regular(path: Path) -> None:
    """Refuse a pipe, a socket or a device in the place of a file: reading it could wait for ever, or never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # opening it says why
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path} is a pipe or a device; allowed: a regular file")


def read(path: Path) -> bytes:
    """The content of a regular file."""
    check_regular(path)
    return path.read_bytes()
