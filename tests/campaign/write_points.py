"""Death at a write point: before, in or after the k-th write, sync or rename of a process.

A power cut also takes back what had not reached the disk: files that were written but not synced get zeros or lose
their end, and a renamed file has its old content again if its folder was not synced.
"""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from atent.storage import disk

PHASES = ("before", "in", "after")


@dataclass
class Points:
    """Counts the write points of this process, and ends it at one of them. Without `at` it only counts."""

    at: int | None = None
    phase: str = "before"
    power: bool = False
    seed: int = 0
    count: int = 0
    told: Path | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # of files with content that is not on the disk: what is
    names: dict[str, bytes | None] = field(default_factory=dict)  # of renamed files: what the disk has instead

    def install(self) -> None:
        """Take the place of the calls that write."""
        write, sync, rename = disk.write, disk.sync, disk.rename

        def writing(handle: int, content: bytes) -> None:
            path = _path(handle)
            self.sizes.setdefault(path, os.fstat(handle).st_size)

            def half() -> None:
                write(handle, content[: len(content) // 2])

            self._reach(lambda: write(handle, content), half)

        def syncing(handle: int) -> None:
            def both() -> None:
                sync(handle)
                path = _path(handle)
                self.sizes.pop(path, None)
                for name in [name for name in self.names if str(Path(name).parent) == path]:
                    del self.names[name]

            self._reach(both, both)

        def renaming(old: Path, new: Path) -> None:
            name = str(new.resolve())
            self.names.setdefault(name, new.read_bytes() if new.is_file() else None)
            self._reach(lambda: rename(old, new), lambda: rename(old, new))

        disk.write, disk.sync, disk.rename = writing, syncing, renaming

    def _reach(self, whole: Callable[[], None], half: Callable[[], None]) -> None:
        here, self.count = self.count == self.at, self.count + 1
        if self.told is not None:
            self.told.write_text(str(self.count))
        if here and self.phase == "before":
            self._die()
        if here and self.phase == "in":
            half()
            self._die()
        whole()
        if here:
            self._die()

    def _die(self) -> None:
        if self.power:
            self._cut()
        os.kill(os.getpid(), signal.SIGKILL)

    def _cut(self) -> None:
        draw = random.Random(self.seed)
        for name, size in self.sizes.items():
            path = Path(name)
            if path.is_file() and path.stat().st_size > size:
                content = path.read_bytes()
                lost = len(content) - size
                path.write_bytes(content[:size] + draw.choice([b"", bytes(lost), content[size:][: lost // 2]]))
        for name, before in self.names.items():
            Path(name).unlink(missing_ok=True)
            if before is not None:
                Path(name).write_bytes(before)


def _path(handle: int) -> str:
    return str(Path(f"/proc/self/fd/{handle}").readlink())
