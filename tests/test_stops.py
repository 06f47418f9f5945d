"""Signals, kills, full disks and losses that are not finite: what a training leaves behind, and how it resumes."""

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atent.cli import main
from atent.data.decode import Files
from atent.defenses import Term
from atent.errors import Interrupted, UserError
from atent.evaluation.target import open_target
from atent.network import Shape
from atent.recipe import Recipe
from atent.storage.files import load_tensors, save_tensors
from atent.storage.run import Run
from atent.training.fit import fit
from atent.training.state import State
from atent.training.step import train_step
from short_runs import QUIET, TINY, assert_same_run, tiny
from toys import own_folder

SGD: dict[str, object] = {"optimizer__name": "sgd", "optimizer__lr": 0.01}
ENTROPY: dict[str, object] = {"optimizer__name": "entropy-sgd", "optimizer__steps": 2, "optimizer__growth": 0.1}
DEMO: dict[str, object] = {"model": "small-cnn"}  # its chain, its network and an average of the weights
ADAM: dict[str, object] = {"optimizer__name": "adam"}
AXES: dict[str, object] = {"defense__name": "trades", "defense__temperature": 0.5, "awp": 0.01, "awp_start": 0.5}
MMA: dict[str, object] = {"defense__name": "mma", "defense__steps": 1}
PULLED: dict[str, object] = {"defense__name": "pgd-at", "defense__project": "never", "defense__pull": 1.0}
SEVERAL = [{"name": "pgd", "steps": 2}, {"name": "square", "queries": 5}]
CASCADE: dict[str, object] = {"monitor": {"name": "cascade", "attacks": SEVERAL}}


def small_model(shape: Shape) -> nn.Module:
    """BatchNorm, dropout and weights of a few thousand numbers: a training takes a fraction of a second."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.LazyLinear(shape.classes)
    )


def small(**changes: object) -> Recipe:
    return tiny(**{"model": f"{__name__}:small_model", **changes})


@pytest.mark.parametrize(
    ("methods", "stop_at"),
    [
        *((SGD, k) for k in (3, 4, 6)),
        (ADAM, 6),
        (ENTROPY, 6),
        (MMA, 6),
        ({**PULLED, "defense__pull_rate": 0.5, "awp": 0.01}, 6),
        ({**AXES, "gibbs": 1.0}, 4),
        (DEMO, 6),
        (CASCADE, 6),
    ],
    ids=lambda value: str(next(iter(value.values())))[:20] if isinstance(value, dict) else str(value),
)
def test_an_interrupted_run_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int, methods: dict[str, object]
) -> None:
    """Stopped inside or at the end of an epoch; the signal comes while a batch is being trained."""
    recipe = small(**methods)
    whole = fit(recipe, tmp_path / "whole", how=QUIET)
    step, steps = train_step, 0

    def interrupting_step(*arguments: Any, **added: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments, **added)

    monkeypatch.setattr("atent.training.fit.train_step", interrupting_step)
    with pytest.raises(Interrupted) as caught:
        fit(recipe, tmp_path / "cut", how=QUIET)
    assert caught.value.code == 143
    monkeypatch.undo()
    assert_same_run(fit(recipe, tmp_path / "cut", how=QUIET), whole)


def test_what_a_killed_write_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    (tmp_path / ".last.safetensors.abc.part").write_bytes(b"half")
    fit(small(epochs=1), tmp_path, how=QUIET)
    assert not list(tmp_path.glob(".*.part"))
    assert run.last.stat().st_mode & 0o444 == 0o444  # others may read it


@pytest.mark.parametrize("damage", ["foreign", "torn", "another recipe"])
def test_a_last_state_that_is_not_this_trainings_is_refused(tmp_path: Path, damage: str) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    recipe = small(epochs=1)
    if damage == "foreign":
        save_tensors(run.last, {"a": torch.zeros(2)}, {})
    elif damage == "torn":
        run.last.write_bytes(run.last.read_bytes()[:1000])
    else:
        run.recipe_file.unlink()
        recipe = small(epochs=1, seed=1)
    with pytest.raises(UserError, match="different: seed" if damage == "another recipe" else "last.safetensors"):
        fit(recipe, tmp_path, how=QUIET)


def test_the_state_is_saved_every_so_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[int, int]] = []
    save = State.save

    def watched(self: State, *arguments: Any) -> None:
        saved.append((self.epoch, self.batch))
        save(self, *arguments)

    monkeypatch.setattr(State, "save", watched)
    fit(small(epochs=1), tmp_path / "batches", how=replace(QUIET, checkpoint_batches=2))
    assert saved == [(0, 2), (0, 4), (1, 0)]
    saved.clear()
    fit(small(epochs=1), tmp_path / "minutes", how=replace(QUIET, checkpoint_minutes=0))
    assert saved[0] == (0, 1)


def test_a_resumed_run_trains_on_the_images_it_began_with(tmp_path: Path) -> None:
    data = own_folder(tmp_path / "own")
    recipe = tiny(data=data, validation=0.2, batch=16)
    run = fit(recipe, tmp_path / "run", how=QUIET)
    before = run.data_record()
    shutil.copy(next((tmp_path / "own" / "2").iterdir()), tmp_path / "own" / "2" / "new.png")
    assert fit(recipe, tmp_path / "run", how=QUIET).data_record() == before
    target = open_target(run.folder)
    assert isinstance(target.images.x, Files)
    assert sorted(target.images.x.names) == sorted(name for names in (before or {})["test"].values() for name in names)
    same = open_target(run.folder, data=f"{data}/../own")  # the same folder, spelled otherwise
    assert isinstance(same.images.x, Files)
    assert same.images.x.names == target.images.x.names
    other = shutil.copytree(data, tmp_path / "other")
    (other / "2").rename(other / "two")
    with pytest.raises(UserError, match=r"has the classes 0, 1, two; .*run knows 0, 1, 2"):
        open_target(run.folder, data=str(other))


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[None]:
    """A disk in memory, mounted at `place`."""
    place.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here: no root, or no permission")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def command_line_fails(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    settings = [f"--set={key}={value}" for key, value in (TINY | {"defense.name": "standard"}).items()]
    monkeypatch.setattr(sys, "argv", ["atent", "train", "demo", "--threads=1", f"--out={out}", *settings])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2


def test_a_full_disk_is_named_and_the_last_state_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk has room for one state and the best weights, not for the copy that the second state needs."""
    recipe = tiny(defense__name="standard")
    whole = fit(recipe, tmp_path / "whole", how=QUIET)
    room = whole.last.stat().st_size + whole.best.stat().st_size + 200_000
    run = Run(tmp_path / "disk" / "run")
    with small_disk(tmp_path / "disk", f"size={room}"):
        command_line_fails(monkeypatch, run.folder)
        assert capsys.readouterr().err.splitlines()[-1].endswith("No space left on device")
        assert not list(run.folder.glob(".*.part"))
        assert load_tensors(run.last)[1]["epoch"] == 1
        shutil.copytree(run.folder, tmp_path / "moved")
    assert_same_run(fit(recipe, tmp_path / "moved", how=QUIET), whole)


def test_a_disk_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "ro"):
        command_line_fails(monkeypatch, tmp_path / "disk" / "run")
    assert capsys.readouterr().err.endswith("disk/run: Read-only file system\n")


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    before = run.last.read_bytes()
    fit(small(epochs=1), tmp_path, how=QUIET)
    assert run.last.read_bytes() == before


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(small(epochs=2), tmp_path / "good", how=QUIET)
    step, steps = train_step, 0

    def spoiled(model: Any, optimizer: Any, defense: Any, *rest: Any, **added: Any) -> Any:
        nonlocal steps
        steps += 1
        factor = math.nan if steps == 6 else 1.0

        def spoil(model: Any, x: Any, y: Any, threat: Any, generator: Any) -> Iterator[Term]:
            for term in defense(model, x, y, threat, generator):
                yield term._replace(loss=factor * term.loss)

        return step(model, optimizer, spoil, *rest, **added)

    monkeypatch.setattr("atent.training.fit.train_step", spoiled)
    with pytest.raises(UserError, match=r"epoch 2, batch 1 is not finite.*last\.safetensors"):
        fit(small(epochs=2), tmp_path / "bad", how=QUIET)
    monkeypatch.undo()
    assert_same_run(fit(small(epochs=2), tmp_path / "bad", how=QUIET), Run(tmp_path / "good"))
