"""Workers: forked processes that play cases one after the other, watched for hangs, crashes and memory.

torch is imported once, before the fork. A worker is replaced after some cases. The memory of a case is what it adds at
its peak to that of its process; a worker whose memory grows from case to case shows a leak.
"""

import gc
import json
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import atent
from atent.machine import release_freed_memory
from campaign.verdict import MEGABYTES, SECONDS, Kind, Outcome

LEAK = 40.0  # megabytes that a worker may keep of its last cases together
ROOM = 8 << 30  # bytes of address space beyond those at the start


@dataclass(frozen=True)
class Result:
    """A case that was played."""

    kind: str
    case: int
    what: str
    faults: tuple[str, ...]
    seconds: float
    megabytes: float
    skipped: bool = False


@dataclass
class _Worker:
    """A process that plays these cases; `done` of them are over. `began`: when the next one began, if it did."""

    pid: int
    pipe: int
    cases: list[int]
    done: int = 0
    began: float | None = None
    rest: bytes = b""


def play_all(kind: Kind, cases: Sequence[int], seed: int, place: Path, workers: int) -> Iterator[Result]:
    """Play the cases in so many processes."""
    waiting = [list(cases[k : k + kind.batch]) for k in range(0, len(cases), kind.batch)]
    running: dict[int, _Worker] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            worker = _start(kind, waiting.pop(0), seed, place)
            running[worker.pipe] = worker
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for worker in [running[pipe] for pipe in ready]:
            found, ended = _read(worker)
            yield from found
            if ended:
                del running[worker.pipe]
                os.close(worker.pipe)
                yield from _bury(worker, kind, waiting, f"the process died: {_status(worker)}")
        for worker in list(running.values()):
            if worker.began is not None and time.monotonic() - worker.began > SECONDS + 5:
                os.killpg(worker.pid, signal.SIGKILL)
                del running[worker.pipe]
                os.close(worker.pipe)
                os.waitpid(worker.pid, 0)
                yield from _bury(worker, kind, waiting, f"hangs: over {SECONDS:g} s")


def _bury(worker: _Worker, kind: Kind, waiting: list[list[int]], why: str) -> Iterator[Result]:
    """Count the case that ended its worker; those after it wait for another one."""
    left = worker.cases[worker.done :]
    if left:
        yield Result(kind.name, left[0], "", (why,), 0.0, 0.0)
    if left[1:]:
        waiting.insert(0, left[1:])


def preload() -> None:
    """Import what commands import when they need it: once, before the fork, and not in a case that is interrupted."""
    import importlib

    for path in sorted(Path(atent.__file__).parent.rglob("*.py")):
        parts = path.relative_to(Path(atent.__file__).parent).with_suffix("").parts
        name = ".".join(("atent", *parts)).removesuffix(".__init__")
        if not name.endswith("__main__"):
            importlib.import_module(name)
    for name in ("torch._dynamo", "matplotlib.pyplot", "jinja2", "foolbox", "art.attacks.evasion", "pyautoattack"):
        with suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    gc.freeze()  # what is there now is never searched for garbage


def play_here(kind: Kind, case: int, seed: int, place: Path) -> Result:
    """Play one case in this process, in an empty folder."""
    folder = place / "cases" / f"{kind.name.replace(' ', '-')}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    before, began = _resident(), time.monotonic()
    _forget_peak()
    try:
        outcome = kind.play(random.Random(f"{seed}/{kind.name}/{case}"), place / kind.name.replace(" ", "-"), folder)
    except Exception:
        outcome = Outcome("", (f"the case itself failed: {traceback.format_exc()}",))
    seconds, megabytes = time.monotonic() - began, _peak() - before
    faults = list(outcome.faults)
    if megabytes > MEGABYTES:
        faults.append(f"memory: {megabytes:.0f} MB; allowed: {MEGABYTES:g}")
    if seconds > SECONDS:
        faults.append(f"{seconds:.1f} s; allowed: {SECONDS:g}")
    os.chdir(place)
    shutil.rmtree(folder, ignore_errors=True)
    return Result(kind.name, case, outcome.what, tuple(faults), seconds, megabytes, outcome.skipped)


def _start(kind: Kind, cases: list[int], seed: int, place: Path) -> _Worker:
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.setpgid(0, 0)
        code = 1
        try:
            _limit()
            _play(kind, cases, seed, place, theirs)
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    return _Worker(pid, ours, cases)


def _play(kind: Kind, cases: list[int], seed: int, place: Path, pipe: int) -> None:
    first = 0.0
    for number, case in enumerate(cases):
        os.write(pipe, json.dumps({"begins": case}).encode() + b"\n")
        found = play_here(kind, case, seed, place)
        if number == len(cases) // 4:  # by then everything has been used once
            first = _kept()
        grown = _kept() - first if number == len(cases) - 1 else 0.0
        if len(cases) >= 20 and grown > LEAK:
            leak = f"memory: the worker kept {grown:.0f} MB of its last {len(cases) - len(cases) // 4} cases"
            found = Result(**{**asdict(found), "faults": (*found.faults, f"{leak}; allowed: {LEAK:g}")})
        os.write(pipe, json.dumps(asdict(found)).encode() + b"\n")


def _read(worker: _Worker) -> tuple[list[Result], bool]:
    """The results that a worker has written, and whether it has ended."""
    content = os.read(worker.pipe, 1 << 16)
    *lines, worker.rest = (worker.rest + content).split(b"\n")
    found = []
    for line in lines:
        told: dict[str, Any] = json.loads(line)
        if "begins" in told:
            worker.began = time.monotonic()
        else:
            found.append(Result(**{**told, "faults": tuple(told["faults"])}))
            worker.done, worker.began = worker.done + 1, None
    return found, not content


def _status(worker: _Worker) -> str:
    _, status = os.waitpid(worker.pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {status >> 8}"


def _limit() -> None:
    """A bomb ends in a MemoryError of its own process, not of the machine."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _kept() -> float:
    """The memory that is in use, in megabytes, without freed memory and without code of libraries that was loaded."""
    gc.collect()
    release_freed_memory()
    return _size("RssAnon")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """The largest memory of this process since `_forget_peak`, in megabytes."""
    return _size("VmHWM")


def _size(name: str) -> float:
    """What the system states about the memory of this process, in megabytes."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6
