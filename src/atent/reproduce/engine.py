"""Find what is missing, and do it: trainings and measures of several networks at a time, one process each."""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atent.errors import Interrupted, UserError
from atent.progress import progress, stop_requests
from atent.recipe import Recipe
from atent.reproduce.found import Number, is_trained, number
from atent.reproduce.networks import NETWORKS, recipe_at
from atent.reproduce.plan import BudgetName, Measure, Row
from atent.reproduce.work import Job, work, work_alone
from atent.storage.run import Run
from atent.zoo.index import PREFIX, entry_of, is_zoo

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where networks and rows are: the folder `home` of a budget, and finished runs elsewhere to `reuse`."""

    home: Path
    budget: BudgetName
    data_dir: Path | None = None
    reuse: tuple[Path, ...] = ()
    device: str = "cpu"
    checkpoint_batches: int | None = None

    def recipe(self, network: str) -> Recipe:
        start = NETWORKS[network].start
        return recipe_at(network, self.budget, self.home, self.trained(start) if start else None, self.device)

    def trained(self, network: str, weights: bool = True) -> Path | None:
        """The finished run of a network: in `home`, or with the same recipe elsewhere; with its weights if needed.

        Or `zoo:NAME`, where the package has it.
        """
        recipe = self.recipe(network)
        for folder in (self.home / network, *self.reuse):
            if is_trained(folder, recipe) and (Run(folder).best.exists() or not weights):
                return folder
        pretrained = NETWORKS[network].zoo if self.budget == "cpu" else ""
        return Path(f"{PREFIX}{pretrained}") if pretrained else None

    def folders(self, row: Row) -> list[Path]:
        """Where rows of this row of a table may be."""
        recipe = self.recipe(row.network)
        end = row.folder.removeprefix(row.network)
        same = [folder for folder in self.reuse if is_trained(folder, recipe)]
        return [self.home / row.folder, *(folder.with_name(folder.name + end) for folder in same)]

    def number(self, row: Row, measure: Measure) -> Number | None:
        trained = self.trained(row.network)
        pretrained = entry_of(trained).weights if is_zoo(trained) else None
        return number(measure.at(self.budget), self.recipe(row.network), self.folders(row), pretrained)

    def job(self, network: str, rows: Iterable[Row], *, keep_weights: bool = False) -> Job | None:
        """What is missing of a network for these rows; None if nothing is. `keep_weights`: its weights are needed."""
        wanted: list[tuple[Row, Measure]] = []
        missing: list[tuple[Row, Measure]] = []
        for row in rows:
            for measure in row.cells.values():
                to_do = measure.at(self.budget).to_do
                if to_do and (row, to_do) not in wanted:
                    wanted.append((row, to_do))
                    missing += [(row, to_do)] if self.number(row, measure) is None else []
        trained = self.trained(network)
        if not missing and (trained or (self.trained(network, weights=False) and not keep_weights)):
            return None
        if trained is None:  # rows of an older network, whose weights are gone, are none of the new one
            missing = wanted
        start = NETWORKS[network].start
        begin = self.trained(start) if start else None
        where = (network, self.budget, self.home, self.data_dir)
        return Job(*where, trained, begin, tuple(missing), self.device, self.checkpoint_batches)


def jobs(place: Place, rows: Iterable[Row], *, drawn: Iterable[str] = ()) -> list[Job]:
    """A job for each network of which something is missing, in order; `drawn` networks are needed with weights."""
    wanted: dict[str, list[Row]] = {}
    for row in rows:
        wanted.setdefault(row.network, []).append(row)
    needed = set(drawn)
    found = {name: place.job(name, mine, keep_weights=name in needed) for name, mine in wanted.items()}
    first: dict[str, Job] = {}
    for name, job in found.items():
        start = NETWORKS[name].start
        if job and not job.trained and start and not (found.get(start) or place.trained(start)):
            before = place.job(start, [], keep_weights=True)
            first |= {start: before} if before else {}
    return [*first.values(), *(job for job in found.values() if job)]


def run(todo: Sequence[Job], processes: int, say: Say) -> dict[str, str]:
    """Do all jobs; the reasons of those that failed, by network. A job waits for the network it starts from."""
    return _run_here(todo, say) if processes == 1 else _run_alone(todo, processes, say)


def _run_here(todo: Sequence[Job], say: Say) -> dict[str, str]:
    failed: dict[str, str] = {}
    for job in todo:
        if reason := _without_start(job, failed):
            failed[job.network] = reason
            continue
        say(f"{job.network}: {_words(job)}")
        try:
            work(job)
        except UserError as error:
            failed[job.network] = str(error)
    return failed


def _run_alone(todo: Sequence[Job], processes: int, say: Say) -> dict[str, str]:
    context = start_method()
    waiting, failed = list(todo), dict[str, str]()
    running: dict[BaseProcess, tuple[Job, float]] = {}
    with stop_requests() as stop, progress("reproduce", len(todo), "networks") as show:
        while waiting or running:
            busy = {job.network for job, _ in running.values()} | {job.network for job in waiting}
            ready = [job for job in waiting if NETWORKS[job.network].start not in busy]
            for job in [job for job in ready if _without_start(job, failed)]:
                failed[job.network] = _without_start(job, failed)
                ready.remove(job)
                waiting.remove(job)
            for job in ready[: processes - len(running)]:
                process = context.Process(target=work_alone, args=(job, _log(job)))
                process.start()
                waiting.remove(job)
                running[process] = (job, time.monotonic())
                say(f"{job.network}: {_words(job)}; its output: {_log(job)}")
            wait([process.sentinel for process in running], timeout=1)
            if stop:
                for process in running:
                    process.terminate()
                for process in running:
                    process.join()
                raise Interrupted(stop[0])
            for process in [process for process in running if process.exitcode is not None]:
                job, began = running.pop(process)
                if process.exitcode:
                    failed[job.network] = _reason(job, process.exitcode)
                say(f"{job.network}: {'failed' if process.exitcode else 'done'}, {time.monotonic() - began:.0f} s")
                show(len(todo) - len(waiting) - len(running), ", ".join(job.network for job, _ in running.values()))
    return failed


def _without_start(job: Job, failed: dict[str, str]) -> str:
    """Why a training cannot begin: the one whose weights it starts from failed, and may have left some. Else empty."""
    start = NETWORKS[job.network].start
    if job.trained or start not in failed or Place(job.home, job.budget).trained(start):
        return ""
    return f"it starts from {start}, whose training is not finished"


def start_method() -> Any:
    """How processes start: from a server that imported torch once; on Windows each imports it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["atent.reproduce.work", "torch._dynamo"])  # the first optimizer imports the latter
    return context


def _log(job: Job) -> Path:
    return job.home / "logs" / f"{job.network}.log"


def _reason(job: Job, code: int) -> str:
    """Why a job failed: the last line of its output, unless a signal ended it."""
    if code < 0:
        return f"ended by signal {-code}; its output: {_log(job)}"
    lines = _log(job).read_text(encoding="utf-8").splitlines() if _log(job).exists() else []
    return lines[-1].removeprefix("error: ") if lines else f"exit code {code}"


def _words(job: Job) -> str:
    measures = f"{len(job.missing)} measures" if len(job.missing) != 1 else "1 measure"
    return measures if job.trained else f"training, {measures}"
