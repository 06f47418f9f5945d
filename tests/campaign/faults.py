"""Faults by real means: a full disk, a disk that cannot be written, closed streams, two processes, low limits."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from atent.cli import main
from campaign.kills import VERBS, _furnish, _ready, _resumed, prepare
from campaign.verdict import Draw, Ended, Kind, Outcome, faults_of
from campaign.write_points import Points

CODES = (0, 1, 2, 130, 143)
Stream = str  # "file", "closed", "unread" (a pipe without a reader) or "full"


def start(
    prepared: Path, verb: str, out: Stream = "file", err: Stream = "file", limit: Callable[[], None] | None = None
) -> int:
    """Start a command in a forked process with real streams; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 97
    try:
        for number, stream in ((1, out), (2, err)):
            _redirect(number, stream)
        sys.stdout, sys.stderr = _opened(1, out), _opened(2, err)
        _ready(prepared, Points())
        if limit is not None:
            limit()
        sys.argv = ["atent", *VERBS[verb]]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            with suppress(OSError):
                traceback.print_exc()
            code = 96
        code = code if all(map(_flushed, (sys.stdout, sys.stderr))) else 120  # as Python itself would end
    finally:
        os._exit(code)


def _flushed(stream: TextIO | None) -> bool:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return False
    return True


def _redirect(number: int, stream: Stream) -> None:
    if stream == "closed":
        os.close(number)
        return
    if stream == "unread":
        reader, handle = os.pipe()
        os.close(reader)
    else:
        path = "/dev/full" if stream == "full" else f".stream{number}.{os.getpid()}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, number)
    os.close(handle)


def _opened(number: int, stream: Stream) -> TextIO | None:
    if stream == "closed":
        return None
    return open(number, "w", encoding="utf-8", closefd=False, buffering=1)


def end_of(pid: int) -> Ended:
    """Wait for a process; its code and what it wrote."""
    for _ in range(10_000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
            path = Path(f".stream2.{pid}")
            return Ended(code, "", path.read_text(errors="replace") if path.exists() else "")
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return Ended(99, "", "hangs: over 50 s")


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
            _furnish(verb, prepared, home)
        except (OSError, shutil.Error):
            return []
        os.chdir(home)
        ended = end_of(start(prepared, verb, err="unread"))
        found = judged(ended, silent=True)
        shutil.copytree(home, folder / "moved", symlinks=True)
    os.chdir(folder / "moved")
    return found + _resumed(verb, prepared, folder / "moved")


def read_only(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    del draw
    home = folder / "disk"
    with disk(home, "size=20m"):
        _furnish(verb, prepared, home)
        os.chdir(home)
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True, capture_output=True)
        return judged(end_of(start(prepared, verb, "unread", "full")), silent=True)


def closed_streams(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Output that nobody reads, or that has no place."""
    _furnish(verb, prepared, folder)
    out, err = (draw.choice(["file", "closed", "unread", "full"]) for _ in "ab")
    ended = end_of(start(prepared, verb, out, err))
    return judged(ended, silent=err != "file") + _resumed(verb, prepared, folder)


def two_processes(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """The same command twice at once: one works, the other says who does."""
    _furnish(verb, prepared, folder)
    first = start(prepared, verb)
    time.sleep(draw.choice([0, 0.02, 0.1]))
    both = [end_of(pid) for pid in (first, start(prepared, verb))]
    found = [fault for one in both for fault in judged(one)]
    if all(one.code for one in both):
        found.append("neither of the two processes did the work")
    return found + _resumed(verb, prepared, folder)


def low_limits(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Few open files, small files, or little memory."""
    _furnish(verb, prepared, folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    kind, most = draw.choice(
        [
            (resource.RLIMIT_NOFILE, draw.choice([8, 16, 24])),
            (resource.RLIMIT_FSIZE, draw.choice([100, 3000, 20_000])),
            (resource.RLIMIT_AS, pages + draw.choice([1 << 20, 1 << 24])),
        ]
    )
    ended = end_of(start(prepared, verb, limit=lambda: resource.setrlimit(kind, (most, most))))
    return judged(ended) + _resumed(verb, prepared, folder)


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


FAULT_CASES = Kind("faults", play, prepare, batch=5, full=60, short=4)
