"""`atent reproduce` where a part of it fails or is killed: what depends on it, what is said, what is left."""

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from atent.errors import UserError
from atent.reproduce import engine
from atent.reproduce.engine import jobs, run
from atent.reproduce.networks import NETWORKS, THREE_LAYERS_SEARCH
from atent.reproduce.plan import Network, Row
from atent.reproduce.work import Job, work
from atent.storage.files import remove_orphans
from atent.storage.run import Run
from atent.training import fit as fit_module
from atent.training.state import State
from short_table import SHORT, short_place

TUNED = [Row("tuned", "pair-tuned", {})]


def half_done(job: Job) -> None:
    """A training whose disk is full after its first epoch."""
    with mock.patch.object(fit_module, "_train_epoch", failing_later(job)):
        work(job)


def failing_later(job: Job) -> Callable[..., Iterator[None]]:
    epochs = fit_module._train_epoch

    def train(state: State, *rest: Any) -> Iterator[None]:
        if state.epoch:
            raise UserError(f"{job.network}: no room")
        yield from epochs(state, *rest)

    return train


def half_done_alone(job: Job, log: Path) -> None:
    del log
    try:
        half_done(job)
    except UserError:
        raise SystemExit(2) from None


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork next to threads
def test_a_network_does_not_start_from_a_training_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """The failed one has left weights of its first epoch. Once it is finished, the other one begins."""
    tuned = Network("mnist-linf-pgd-at", THREE_LAYERS_SEARCH, start="pair-standard")
    monkeypatch.setitem(NETWORKS, "pair-tuned", tuned)
    monkeypatch.setattr(engine, "start_method", lambda: multiprocessing.get_context("fork"))
    monkeypatch.setattr(engine, "work", half_done)
    monkeypatch.setattr(engine, "work_alone", half_done_alone)
    place = short_place(tmp_path)
    failed = run(jobs(place, TUNED), processes, lambda _: None)
    assert failed["pair-tuned"] == "it starts from pair-standard, whose training is not finished"
    assert Run(tmp_path / "pair-standard").best.exists()
    assert not (tmp_path / "pair-tuned").exists()
    if processes == 1:
        monkeypatch.setattr(engine, "work", work)
        assert run(jobs(place, TUNED), 1, lambda _: None) == {}
        assert jobs(place, TUNED) == []


def test_a_worker_that_a_signal_ended_is_named(tmp_path: Path) -> None:
    """Its last line would be one of its progress."""
    job, _ = jobs(short_place(tmp_path), SHORT.rows)
    log = tmp_path / "logs" / f"{job.network}.log"
    log.parent.mkdir()
    log.write_text("epoch 1/2: loss 0.5\nerror: no room\n")
    assert engine._reason(job, -9) == f"ended by signal 9; its output: {log}"
    assert engine._reason(job, 2) == "no room"


def test_what_killed_writes_left_is_removed(tmp_path: Path) -> None:
    """Also where the file itself is not written again; a file that another process is writing stays."""
    import fcntl

    for name in ("a/.rows.jsonl.x.part", "a/b/.last.y.part", "a/rows.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with (tmp_path / "a" / ".rows.jsonl.x.part").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_orphans(tmp_path)
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
            ".rows.jsonl.x.part",
            "rows.jsonl",
        ]
    remove_orphans(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["rows.jsonl"]
