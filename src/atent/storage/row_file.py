"""A file of rows that can be resumed: intact rows are kept, damaged ones are computed again."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic

from atent.errors import UserError
from atent.progress import say
from atent.storage import disk
from atent.storage.files import write_atomically
from atent.storage.row_format import (
    SEALED,
    Content,
    Cost,
    Damage,
    Kind,
    R,
    close_batch,
    lines_of,
    parse,
    settings,
    to_line,
)

SECONDS_TO_LOSE = 1.0


class RowFile(Generic[R]):
    """The rows of one attack or certification. Only one process at a time may resume it and append (`alone`)."""

    def __init__(self, kind: Kind[R], path: Path) -> None:
        self.kind, self.path = kind, path
        self._checksum = b""  # of the last batch in the file
        self._synced = time.monotonic()

    @classmethod
    def of(cls, kind: Kind[R], folder: Path, header: Mapping[str, Any]) -> "RowFile[R]":
        """The file for these settings. Its name is readable and ends with a hash of them, which finds it again."""
        words = f"{header['label']} {header.get('threat', '')} {header['data']}".lower()
        name = re.sub(r"[^a-z0-9.]+", "-", words).strip("-")[:100]
        digest = hashlib.sha256(json.dumps(settings(header), sort_keys=True).encode()).hexdigest()[:8]
        found = sorted((folder / kind.folder).glob(f"*-{digest}.jsonl"))  # its threat may be written in another way
        return cls(kind, found[0] if found else folder / kind.folder / f"{name}-{digest}.jsonl")

    def resume(self, header: Mapping[str, Any]) -> int:
        """Prepare the file for more rows; returns the number of rows it has.

        A finished file is not changed, whichever version wrote it, but for zeros of a power cut at its end. In an
        unfinished file everything after the last good batch is removed; of a damaged file a copy is kept. A file that
        cannot be resumed is renamed, and the rows start from scratch.
        """
        found = self._resumable(header)
        if found and found.complete:
            if 0 < found.size < self.path.stat().st_size:  # zeros of a power cut
                write_atomically(self.path, self.path.read_bytes()[: found.size])
            return len(found.rows)
        if found and found.fault:
            aside = _free_name(self.path)
            write_atomically(aside, self.path.read_bytes())
            kept = f"the rows of {len(found.rows):,} of {header['examples']:,} images are kept"
            say(f"{self.path} is damaged: {found.fault}; {kept}, the others are computed again; copy: {aside.name}")
        if not found or not found.rows:
            self._checksum = to_line({**header, **SEALED})
            write_atomically(self.path, self._checksum)
            return 0
        self._checksum = found.checksum
        if found.size < self.path.stat().st_size:
            write_atomically(self.path, self.path.read_bytes()[: found.size])
        return len(found.rows)

    def append(self, rows: Iterable[Mapping[str, Any]], cost: Cost) -> None:
        """Append the rows of a batch and their cost in one write.

        They are on the disk at once if the last ones are older than a second: waiting for the disk takes milliseconds,
        and a power cut may cost a second of work. `sync` puts the last ones there.
        """
        lines = [to_line(row) for row in rows]
        closing, self._checksum = close_batch(self._checksum, lines, cost)
        with self.path.open("ab", buffering=0) as file:
            disk.write(file.fileno(), b"".join([*lines, closing]))
            if time.monotonic() - self._synced > SECONDS_TO_LOSE:
                disk.sync(file.fileno())
                self._synced = time.monotonic()

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        if self.path.exists():
            with self.path.open("ab", buffering=0) as file:
                disk.sync(file.fileno())

    def read(self) -> Content[R]:
        """The content of a finished file. For any other file: a UserError with the problem and how to repair it."""
        command = f"the same `atent {self.kind.command}` command"
        try:
            found = self._parse()
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from None
        except Damage as damage:
            raise UserError(
                f"{self.path} is damaged, or not a file of atent {self.kind.command}: {damage}; "
                f"{command} starts from scratch"
            ) from None
        if found.fault:
            raise UserError(f"{self.path} is damaged: {found.fault}; {command} repairs it")
        if not found.finished:
            done = f"{len(found.rows):,} of {found.header['examples']:,} images"
            raise UserError(f"{self.path} is unfinished: {done}; {command} finishes it")
        return found

    def _parse(self) -> Content[R]:
        return parse(self.kind, lines_of(disk.read(self.path)))

    def _resumable(self, header: Mapping[str, Any]) -> Content[R] | None:
        """The content, if rows for this header can be appended to it; otherwise the file is renamed."""
        if not self.path.exists():
            return None
        try:
            found = self._parse()
            if reason := _obstacle(found, header):
                raise Damage(reason)
        except Damage as damage:
            aside = self.path.rename(_free_name(self.path))
            say(f"{self.path} cannot be resumed: {damage}; it is renamed to {aside.name}, the rows start from scratch")
            return None
        return found


def _obstacle(found: Content[R], header: Mapping[str, Any]) -> str:
    """Why rows for this header cannot be appended to the file; empty if they can."""
    if settings(found.header) != settings(header):
        return "its header has other settings, or is damaged"
    if len(found.rows) == header["examples"] and (found.verified or not found.fault):
        return ""
    state = found.fault or "it is unfinished"
    if not found.verified:
        return f"{state}, and has no checksums"
    version = found.header.get("version")
    return f"{state}, and is of version {version}" if version != header.get("version") else ""


def _free_name(path: Path) -> Path:
    """The name for a file that is damaged or cannot be resumed: NAME.old, NAME.old.1, ..."""
    number, aside = 0, path.with_name(f"{path.name}.old")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.old.{number}")
    return aside


def leave_out(problem: str) -> None:
    say(f"left out: {problem}")


def finished_files(
    kind: Kind[R], folder: Path, report: Callable[[str], None] = leave_out
) -> Iterator[tuple[Path, Content[R]]]:
    """Every finished file of a run folder. A damaged or unfinished file is skipped and passed to `report`."""
    for path in sorted((folder / kind.folder).glob("*.jsonl")):
        try:
            yield path, RowFile(kind, path).read()
        except UserError as error:
            report(str(error))
