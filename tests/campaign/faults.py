"""Faults by real means: a full disk, a disk that cannot be written, closed streams, two processes, low limits."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.kills import VERBS, _furnish, _ready, _resumed, prepare
from campaign.verdict import Draw, Ended, Kind, Outcome, faults_of
from campaign.write_points import Points

CODES = (0, 1, 2, 130, 143)
CHILD = "import sys; from campaign.faults import child; child(sys.argv[1], sys.argv[2:])"


def child(prepared: str, words: list[str]) -> None:
    """In a process of its own: the command, with the data set that comes from files."""
    from atent.cli import main

    _ready(Path(prepared), Points())
    sys.argv = ["atent", *words]
    main()


def run(prepared: Path, verb: str, shell: str = "{}", **how: object) -> Ended:
    """A command in a real process, inside a line of shell."""
    words = [sys.executable, "-c", CHILD, str(prepared), *VERBS[verb]]
    line = shell.format(" ".join(map(_quoted, words)))
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=55, check=False, **how)  # type: ignore[call-overload]
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


@contextmanager
def disk(folder: Path, options: str) -> Iterator[None]:
    """A disk of its own at the folder, in memory; OSError where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False)
    if done.returncode:
        raise PermissionError("mounting is not allowed")
    try:
        yield
    finally:
        os.chdir("/")
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def full_disk(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """A disk with little room; then the same with room, from where it stopped."""
    size = draw.choice([64, 80, 100, 130, 200, 400])
    home = folder / "disk"
    with disk(home, f"size={size}k"):
        try:
            _furnish(verb, prepared, home)
        except OSError:
            return []
        ended = run(prepared, verb, cwd=home)
        found = faults_of(ended, CODES)
        shutil.copytree(home, folder / "moved", symlinks=True)
    os.chdir(folder / "moved")
    return found + _resumed(verb, prepared, folder / "moved")


def read_only(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    del draw
    home = folder / "disk"
    with disk(home, "size=20m"):
        _furnish(verb, prepared, home)
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True, capture_output=True)
        return faults_of(run(prepared, verb, cwd=home), CODES)


def closed_streams(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Output that nobody reads, or that has no place."""
    _furnish(verb, prepared, folder)
    ways = ["{} >&-", "{} 2>&-", "{} >&- 2>&-", "{} <&-", "{} | true", "{} >/dev/full", "{} 2>/dev/full"]
    ways += ["{} 2>&1 | head -c 1", "{} >/dev/full 2>&1"]
    ended = run(prepared, verb, f"set -o pipefail; {draw.choice(ways)}", cwd=folder)
    os.chdir(folder)
    return faults_of(Ended(0 if ended.code == 1 else ended.code, "", ended.err), (*CODES, 74)) + _resumed(
        verb, prepared, folder
    )


def two_processes(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """The same command twice at once: one works, the other says that it waits for nobody."""
    del draw
    _furnish(verb, prepared, folder)
    words = [sys.executable, "-c", CHILD, str(prepared), *VERBS[verb]]
    both = [subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"]
    found = []
    for one in both:
        out, err = one.communicate(timeout=55)
        found += faults_of(Ended(one.returncode, out, err), CODES)
    if all(one.returncode for one in both):
        found.append("neither of the two processes did the work")
    os.chdir(folder)
    return found + ([] if verb == "longer" else _resumed(verb, prepared, folder))


def low_limits(draw: Draw, prepared: Path, folder: Path, verb: str) -> list[str]:
    """Few open files, small files, little address space, little stack."""
    _furnish(verb, prepared, folder)
    limit = draw.choice(["-n 24", "-f 4", "-f 40", "-v 3000000", "-s 512"])
    ended = run(prepared, verb, f"ulimit {limit}; {{}}", cwd=folder)
    os.chdir(folder)
    if ended.code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ) or "libgomp" in ended.err or "ImportError" in ended.err:
        return []  # the system ended it, or Python could not start
    return faults_of(ended, CODES) + _resumed(verb, prepared, folder)


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
