import json
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
from torch import Tensor

import atent.train
from atent.cli import main
from atent.data import SOURCES, Published
from atent.defenses import Term
from atent.errors import Interrupted, UserError
from atent.images import Images
from atent.models import Shape
from atent.pictures import Files
from atent.recipe import Recipe, load_recipe, recipe_names
from atent.runs import Run, load_tensors, save_tensors
from atent.state import State
from atent.target import open_target
from atent.train import How, fit, train_step
from toys import THREATS, generator, own_folder, small_batch, small_network, stand_in

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
# 200 training images of mnist-small in four batches: a second or two.
TINY = {"validation": 5800, "batch": 50, "epochs": 2, "monitor_examples": 20, "monitor.steps": 2}
SHORT_CHAIN = {"defense.steps": 2}


QUIET = How(say=lambda _: None)


def tiny(**changes: object) -> Recipe:
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    chain = {} if changed.get("defense.name") == "standard" else SHORT_CHAIN
    return load_recipe("demo", TINY | chain | changed)


def without_time(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.history()]


def assert_same_run(one: Run, two: Run) -> None:
    for file in ("last", "best"):
        ours, theirs = load_tensors(getattr(one, file))[0], load_tensors(getattr(two, file))[0]
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
    assert without_time(one) == without_time(two)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("stop_at", [1, 3, 4, 6])
def test_an_interrupted_run_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int, optimizer: str
) -> None:
    """Stopped inside or at the end of an epoch; the signal comes while a batch is being trained."""
    recipe = tiny(optimizer__name=optimizer, optimizer__lr=0.01)
    whole = fit(recipe, tmp_path / "whole", how=QUIET)
    step, steps = atent.train.train_step, 0

    def interrupting_step(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    monkeypatch.setattr(atent.train, "train_step", interrupting_step)
    with pytest.raises(Interrupted) as caught:
        fit(recipe, tmp_path / "cut", how=QUIET)
    assert caught.value.code == 143
    monkeypatch.undo()
    assert_same_run(fit(recipe, tmp_path / "cut", how=QUIET), whole)


def test_what_a_killed_write_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    run = fit(tiny(epochs=1), tmp_path, how=QUIET)
    (tmp_path / ".last.safetensors.abc.part").write_bytes(b"half")
    fit(tiny(epochs=1), tmp_path, how=QUIET)
    assert not list(tmp_path.glob(".*.part"))
    assert run.last.stat().st_mode & 0o444 == 0o444  # others may read it


@pytest.mark.parametrize("damage", ["foreign", "torn", "another recipe"])
def test_a_last_state_that_is_not_this_trainings_is_refused(tmp_path: Path, damage: str) -> None:
    run = fit(tiny(epochs=1), tmp_path, how=QUIET)
    recipe = tiny(epochs=1)
    if damage == "foreign":
        save_tensors(run.last, {"a": torch.zeros(2)}, {})
    elif damage == "torn":
        run.last.write_bytes(run.last.read_bytes()[:1000])
    else:
        run.recipe_file.unlink()
        recipe = tiny(epochs=1, seed=1)
    with pytest.raises(UserError, match="different: seed" if damage == "another recipe" else "last.safetensors"):
        fit(recipe, tmp_path, how=QUIET)


def test_a_defense_without_terms_is_refused() -> None:
    class Idle:
        def __call__(self, *_: Any) -> Any:
            return iter(())

    idle: Any = Idle()
    model, (x, y) = small_network(), small_batch()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UserError, match="no loss term"):
        train_step(model, optimizer, idle, x, y, THREATS[0], generator())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone() -> None:
    """sqrt has an infinite slope at 0: a finite loss with an infinite gradient."""

    class Steep:
        def __call__(self, model: Any, x: Tensor, *_: Any) -> Any:
            logits = model(x)
            yield Term((logits - logits.detach()).abs().sqrt().sum(1), logits, x)

    steep: Any = Steep()
    model, (x, y) = small_network(), small_batch()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters())
    assert not train_step(model, optimizer, steep, x, y, THREATS[0], generator()).finite
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_state_is_saved_every_so_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[int, int]] = []
    save = State.save

    def watched(self: State, *arguments: Any) -> None:
        saved.append((self.epoch, self.batch))
        save(self, *arguments)

    monkeypatch.setattr(State, "save", watched)
    fit(tiny(epochs=1), tmp_path / "batches", how=replace(QUIET, checkpoint_batches=2))
    assert saved == [(0, 2), (0, 4), (1, 0)]
    saved.clear()
    fit(tiny(epochs=1), tmp_path / "minutes", how=replace(QUIET, checkpoint_minutes=0))
    assert saved[0] == (0, 1)


def test_patience_ends_a_training_that_gets_no_better_and_a_resumed_one_too(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = tiny(epochs=20, patience=2, optimizer__lr=1e-12, averaging=0, defense__name="standard")
    run = fit(recipe, tmp_path, how=How(say=said.append))
    assert len(run.history()) == 3  # no later epoch is better than the first
    assert "stopped early: no better epoch among the last 2 (patience)" in said[-1]
    assert len(fit(recipe, tmp_path, how=QUIET).history()) == 3


def test_images_on_the_disk_train_bit_for_bit_like_those_in_memory(tmp_path: Path) -> None:
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, batch=16, standardize=True)
    memory = fit(recipe, tmp_path / "memory", how=replace(QUIET, stream=False))
    assert_same_run(fit(recipe, tmp_path / "disk", how=replace(QUIET, stream=True, workers=3)), memory)


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
    (tmp_path / "own" / "2").rename(tmp_path / "own" / "two")
    with pytest.raises(UserError, match=r"has the classes 0, 1, two; .*run knows 0, 1, 2"):
        open_target(run.folder, data=f"{data}/../own")


def test_fine_tuning_starts_from_the_weights_and_leaves_frozen_layers_alone(tmp_path: Path) -> None:
    first = fit(tiny(epochs=1), tmp_path / "first", how=QUIET)
    changes: dict[str, Any] = {
        "weights": str(first.folder),
        "reset": ["classifier.fc3"],
        "freeze": ["feature_extractor"],
    }
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, batch=16, averaging=0, **changes)
    run = fit(recipe, tmp_path / "second", how=QUIET)
    before, after = load_tensors(first.best)[0], load_tensors(run.best)[0]
    frozen = [name for name in after if name.startswith("feature_extractor")]
    assert frozen
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["classifier.fc1.weight"], after["classifier.fc1.weight"])
    assert after["classifier.fc3.weight"].shape == (3, 200)
    shutil.rmtree(first.folder)  # a run does not need its parent once it has begun
    assert len(fit(recipe, tmp_path / "second", how=QUIET).history()) == 2


def test_weights_that_do_not_fit_leave_no_folder_behind(tmp_path: Path) -> None:
    first = fit(tiny(epochs=1), tmp_path / "first", how=QUIET)
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, weights=str(first.folder))
    with pytest.raises(UserError, match=r"--reset classifier\.fc3"):
        fit(recipe, tmp_path / "second", how=QUIET)
    assert not (tmp_path / "second").exists()


def test_a_python_object_is_trained_and_judged(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    run = fit(tiny(epochs=1), tmp_path, model=network, how=QUIET)
    assert "Sequential (a Python object)" in run.recipe().model
    with pytest.raises(UserError, match=r"a Python object.*--model package\.module:function"):
        open_target(run.folder)
    assert open_target(run.folder, model=network, examples=5).model == "Sequential"


def test_curves_are_drawn_once_for_each_epoch(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fit(tiny(epochs=2), tmp_path, how=replace(QUIET, tensorboard=True))
    run = fit(tiny(epochs=2), tmp_path, how=replace(QUIET, tensorboard=True))
    events = accumulator.EventAccumulator(str(run.board))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (row["epoch"], pytest.approx(row["loss"])) for row in run.history()
    ]


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
    run = fit(tiny(epochs=1), tmp_path, how=QUIET)
    before = run.last.read_bytes()
    fit(tiny(epochs=1), tmp_path, how=QUIET)
    assert run.last.read_bytes() == before


def test_averaged_weights_are_what_is_kept(tmp_path: Path) -> None:
    run = fit(tiny(epochs=1, averaging=0.9), tmp_path, how=QUIET)
    last, best = load_tensors(run.last)[0], load_tensors(run.best)[0]
    name = "classifier.fc3.weight"
    assert torch.equal(best[name], last[f"average//module.{name}"])
    assert not torch.equal(best[name], last[name])


def test_the_test_set_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = Published.images

    def watched(self: Published, split: Any) -> Images:
        read.append(split)
        return original(self, split)

    monkeypatch.setattr(Published, "images", watched)
    fit(tiny(epochs=1), tmp_path, how=QUIET)
    assert read == ["train"]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tiny(epochs=2), tmp_path / "good", how=QUIET)
    step, steps = atent.train.train_step, 0

    def spoiled(model: Any, optimizer: Any, defense: Any, x: Tensor, *rest: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(model, optimizer, defense, x * (math.nan if steps == 6 else 1), *rest)

    monkeypatch.setattr(atent.train, "train_step", spoiled)
    with pytest.raises(UserError, match=r"epoch 2, batch 1 is not finite.*last\.safetensors"):
        fit(tiny(epochs=2), tmp_path / "bad", how=QUIET)
    monkeypatch.undo()
    assert_same_run(fit(tiny(epochs=2), tmp_path / "bad", how=QUIET), Run(tmp_path / "good"))


def test_the_plateau_is_noticed_and_named(tmp_path: Path) -> None:
    """Also where the loss is only a part of the cross-entropy, as with ATENT's shares."""
    said: list[str] = []
    recipe = tiny(epochs=1, optimizer__lr=1e-9, schedule__eps_warmup=0, averaging=0, defense__share=0.3)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(atent.train, "_fresh_state", blank_state)
    run = fit(recipe, tmp_path, how=How(say=said.append))
    monkey.undo()
    assert run.history()[0]["plateau"] is True
    assert any("log(10) = 2.303" in line and "schedule.warmup" in line for line in said)


_fresh_state = atent.train._fresh_state


def blank_state(*arguments: Any) -> Any:
    """A network that gives every image the same answer."""
    state = _fresh_state(*arguments)
    for parameter in list(state.model.parameters())[-2:]:
        torch.nn.init.zeros_(parameter)
    return state


TRACES: dict[str, dict[str, object]] = {
    "standard": {"defense__name": "standard"},
    "pgd-at": {"defense__name": "pgd-at"},
    "atent linf": {"defense__share": 0.6, "defense__project": "last", "defense__noise": 0.02},
    "atent l2": {"defense__share": 0.6, "defense__project": "never", "defense__pull": "auto", "threat": "l2:1.0"},
}


@pytest.mark.parametrize("trace", TRACES)
def test_losses_are_those_of_the_golden_file(tmp_path: Path, trace: str) -> None:
    """A change of these numbers is a change of the algorithm: it is said in CHANGELOG, "Numbers changed"."""
    run = fit(tiny(schedule__warmup=0, batch=25, **TRACES[trace]), tmp_path, how=QUIET)
    golden = json.loads(GOLDEN.read_text())[trace]
    assert [row["loss"] for row in run.history()] == pytest.approx(golden, rel=1e-4)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shapes = {"cifar10": Shape((3, 32, 32), 10)}
    short: dict[str, float] = {"epochs": 1, "batch": 2, "validation": 2, "monitor.steps": 2}
    recipe = load_recipe(name)
    if "steps" in recipe.defense:
        short["defense.steps"] = 2
    if recipe.defense.get("pull") == "auto":
        short["defense.reach"] = 2
    if recipe.defense.get("step") and recipe.defense.get("pull") == "auto":
        short["defense.step"] = recipe.make_threat().eps  # two steps of the recipe's size could not reach eps
    images = stand_in(shapes.get(recipe.data, Shape((1, 28, 28), 10)), 6)
    assert recipe.data in [*SOURCES, "images"]  # own-images' stand-in for a user's folder
    monkeypatch.setattr(atent.train, "open_data", lambda *_, **__: Published("mnist-small"))
    monkeypatch.setattr(Published, "images", lambda *_: images)
    recipe = load_recipe(name, short)
    run = fit(recipe, tmp_path, how=QUIET)
    (row,) = run.history()
    assert math.isfinite(row["loss"])
    assert run.best.exists()
