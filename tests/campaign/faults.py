"""Faults by real means: a full disk, a disk that cannot be written, closed streams, two processes, low limits."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.kills import VERBS, furnish, prepare_once, ready, resumed
from campaign.streams import Stream, end_of, start
from campaign.verdict import Draw, Ended, Kind, Outcome, faults_of
from campaign.write_points import Points

CODES = (0, 1, 2, 130, 143)


def begin(
    prepared: Path, verb: str, out: Stream = "file", err: Stream = "file", limit: Callable[[], None] = lambda: None
) -> int:
    """Start a command; returns the number of its process."""

    def before() -> None:
        ready(prepared, Points())
        limit()

    return start(VERBS[verb], before, out, err)


def judged(ended: Ended, silent: bool = False) -> list[str]:
    """The faults; a command whose messages had no place is judged by its code alone."""
    if silent:
        return [] if ended.code in CODES else [f"exit code {ended.code}"]
    return faults_of(ended, CODES)


@contextmanager
def disk(folder: Path, options: str) -> Iterator[None]:
    """A disk of its own at the folder, in memory; OSError where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise PermissionError("mounting is not allowed")
    try:
        yield
    finally:
        os.chdir("/")
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def full_disk(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """A disk with little room; then the same with room, from where it stopped."""
    home = folder / "disk"
    with disk(home, f"size={draw.choice([64, 80, 100, 130, 200, 400])}k"):
        try:
            furnish(verb, prepared, home)
        except (OSError, shutil.Error):
            return []
        os.chdir(home)
        ended = end_of(begin(prepared, verb, err="unread"))
        found = judged(ended, silent=True)
        shutil.copytree(home, folder / "moved", symlinks=True)
    os.chdir(folder / "moved")
    return found + resumed(verb, prepared, folder / "moved")


def read_only(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    del draw
    home = folder / "disk"
    with disk(home, "size=20m"):
        furnish(verb, prepared, home)
        os.chdir(home)
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True, capture_output=True)
        return judged(end_of(begin(prepared, verb, "unread", "full")), silent=True)


def closed_streams(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Output that nobody reads, or that has no place."""
    furnish(verb, prepared, folder)
    out, err = (draw.choice(["file", "closed", "unread", "full"]) for _ in "ab")
    ended = end_of(begin(prepared, verb, out, err))
    return judged(ended, silent=err != "file") + resumed(verb, prepared, folder)


def two_processes(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """The same command twice at once: one works, the other says who does."""
    furnish(verb, prepared, folder)
    first = begin(prepared, verb)
    time.sleep(draw.choice([0, 0.02, 0.1]))
    both = [end_of(pid) for pid in (first, begin(prepared, verb))]
    found = [fault for one in both for fault in judged(one)]
    if all(one.code for one in both):
        found.append("neither of the two processes did the work")
    return found + resumed(verb, prepared, folder)


def low_limits(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Few open files, small files, or little memory."""
    furnish(verb, prepared, folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    kind, most = draw.choice(
        [
            (resource.RLIMIT_NOFILE, draw.choice([8, 16, 24])),
            (resource.RLIMIT_FSIZE, draw.choice([100, 3000, 20_000])),
            (resource.RLIMIT_AS, pages + draw.choice([1 << 20, 1 << 24])),
        ]
    )
    ended = end_of(begin(prepared, verb, limit=lambda: resource.setrlimit(kind, (most, most))))
    return judged(ended) + resumed(verb, prepared, folder)


FAULTS: dict[str, Callable[[Draw, Path, Path, str], list[str]]] = {
    "full disk": full_disk,
    "read-only disk": read_only,
    "closed streams": closed_streams,
    "two processes": two_processes,
    "low limits": low_limits,
}


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    name = draw.choices(list(FAULTS), [4, 2, 5, 3, 2])[0]
    verb = draw.choices(["train", "attack", "certify", "fetch", "report"], [4, 4, 3, 2, 1])[0]
    try:
        return Outcome(f"{name}: {verb}", tuple(FAULTS[name](draw, prepared, folder, verb)))
    except PermissionError as error:
        return Outcome(f"{name}: {error}", skipped=True)


FAULT_CASES = Kind("faults", play, prepare_once, batch=5, full=60, short=4)
