"""Kills of distributed workers: one of two processes dies, the other ends soon in one line, and the job resumes.

The processes are forked, and this one keeps the store that torchrun would keep. As torchrun does, it ends a process
that waits for one that was killed before the two had met.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atent.parallel import join
from atent.parallel.team import Team
from atent.parallel.watch import watching
from campaign.kills import VERBS, different, furnish
from campaign.streams import start
from campaign.toy_run import done, prepare_run
from campaign.verdict import SECONDS, Draw, Ended, Kind, Outcome, faults_of
from campaign.write_points import PHASES, Points

SIZE, SOON = 2, 15.0  # processes; seconds after a kill in which the other one ends
LOST = "another process of this job was lost"
NAMES = ("train", "attack", "certify")
Ready = Callable[[int], None]  # called in each process with its rank


@dataclass
class Worker:
    """One of the processes: its rank, its number, and how it ended."""

    rank: int
    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code; minus the number of the signal that ended it; None while it runs."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
        return self.code

    def end(self) -> Ended:
        path = Path(f".stream2.{self.pid}")
        assert self.code is not None
        return Ended(self.code, "", path.read_text(errors="replace") if path.exists() else "")

    @property
    def has_met(self) -> bool:
        """Whether it is connected to the other."""
        return Path(f".met.{self.pid}").exists()


@contextmanager
def job(words: list[str], ready: Ready = lambda _: None) -> Iterator[list[Worker]]:
    """The command in two processes, which are ended after the block if they still run."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    workers = [Worker(rank, start(words, partial(_join, rank, store.port, ready))) for rank in range(SIZE)]
    try:
        yield workers
    finally:
        for one in workers:
            if one.poll() is None:
                os.kill(one.pid, signal.SIGKILL)
                os.waitpid(one.pid, 0)
        del store


def _join(rank: int, port: int, ready: Ready) -> None:
    """In the child: what torchrun sets, a sign that the processes have met, and the death that is planned."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    vars(sys)["__stderr__"] = sys.stderr  # a thread that ends the process prints there

    def told(team: Team, lost: Callable[[str], None]) -> Any:
        Path(f".met.{os.getpid()}").touch()
        return watching(team, lost)

    vars(join)["watching"] = told
    ready(rank)


def together(words: list[str], ready: Ready = lambda _: None) -> list[Ended]:
    """The ends of a command in two processes; 99 if it hangs."""
    with job(words, ready) as workers:
        if not _until(lambda: all(one.poll() is not None for one in workers), SECONDS / 2):
            return [Ended(99, "", f"hangs: over {SECONDS / 2:g} s")]
        return [one.end() for one in workers]


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False if it takes longer."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return False
        time.sleep(0.002)
    return True


def prepare(place: Path) -> None:
    """What two undisturbed processes give, and how many write points the first one has."""
    prepare_run(place)
    counts = {}
    for verb in NAMES:
        home = place / "undisturbed" / verb
        home.mkdir(parents=True)
        furnish(verb, place, home)
        os.chdir(home)
        for ended in together(VERBS[verb], partial(_count, home / "count")):
            done(ended)
        counts[verb] = int((home / "count").read_text())
    (place / "counts.json").write_text(json.dumps(counts))


def _count(told: Path, rank: int) -> None:
    if rank == 0:
        Points(told=told).install()


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    """Of two processes, the first one dies at a write point, or one of them at a random moment."""
    counts = json.loads((prepared / "counts.json").read_text())
    verb = draw.choices(NAMES, [3, 2, 2])[0]
    furnish(verb, prepared, folder)
    if draw.random() < 0.5:
        points = Points(draw.randrange(counts[verb]), draw.choice(PHASES), draw.random() < 0.5, draw.randrange(1000))
        what = f"the first one dies {points.phase} point {points.at}{', power cut' if points.power else ''}"
        faults = _at_a_point(verb, points)
    else:
        victim, moment, meets = draw.randrange(SIZE), draw.uniform(0, 0.3), draw.random() < 0.8
        what = f"process {victim} dies {moment:.3f} s after {'they met' if meets else 'the start'}"
        faults = _at_a_moment(verb, victim, moment, meets)
    return Outcome(f"{verb}: {what}", tuple(faults or _resumed(verb, prepared, folder)))


def _at_a_point(verb: str, points: Points) -> list[str]:
    def ready(rank: int) -> None:
        if rank == 0:
            points.install()

    with job(VERBS[verb], ready) as workers:
        if not _until(lambda: workers[0].poll() is not None, SECONDS / 3):
            return ["hangs: the process that was to die"]
        return _survived(workers, 0)


def _at_a_moment(verb: str, victim: int, moment: float, meets: bool) -> list[str]:
    with job(VERBS[verb]) as workers:
        if meets and not _until(lambda: all(one.has_met or one.poll() is not None for one in workers), SECONDS / 3):
            return ["hangs: the processes do not meet"]
        time.sleep(moment)
        if workers[victim].poll() is None:
            os.kill(workers[victim].pid, signal.SIGKILL)
            os.waitpid(workers[victim].pid, 0)
            workers[victim].code = -signal.SIGKILL
        return _survived(workers, victim)


def _survived(workers: list[Worker], victim: int) -> list[str]:
    """The faults of the process that was not killed."""
    other = workers[1 - victim]
    if other.poll() is None and not other.has_met:
        time.sleep(0.1)
        if not other.has_met:
            os.kill(other.pid, signal.SIGTERM)  # as torchrun does
    if not _until(lambda: other.poll() is not None, SOON):
        return [f"hangs: the other process goes on for {SOON:g} s"]
    ended = other.end()
    if ended.code in (0, -signal.SIGTERM):  # it had done everything, or had not begun
        return faults_of(ended, (0, -signal.SIGTERM))
    told = [line for line in ended.err.splitlines() if LOST in line]
    return faults_of(ended, (1,)) + ([] if len(told) == 1 else [f"told {len(told)} times: {ended.err[-300:]!r}"])


def _resumed(verb: str, prepared: Path, folder: Path) -> list[str]:
    """The faults of the same command once more, in two processes, to its end."""
    found = [fault for ended in together(VERBS[verb]) for fault in faults_of(ended, (0,))]
    return found or different(verb, prepared / "undisturbed" / verb, folder)


TEAMS = Kind("kills of distributed workers", play, prepare, batch=5, full=40, short=2)
