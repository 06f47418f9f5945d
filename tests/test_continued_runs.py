"""Runs after the fact: more epochs, another working folder, moved data; and what Ctrl-C answers."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atent.attacks import Apgd, Cascade, Pgd, Square
from atent.data.decode import Files
from atent.data.images import Images, hold_out
from atent.errors import Interrupted, UserError
from atent.evaluation import attack as attacks
from atent.evaluation.attack import attack_batch, attack_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target, open_target
from atent.models import Shape
from atent.recipe import parse_recipe, recipe_of
from atent.storage.files import load_tensors
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.extend import extend, settle
from atent.training.fit import fit
from atent.training.step import train_step
from short_runs import QUIET, tiny, without_time
from test_cli import SETTINGS, atent
from test_stops import small
from toys import own_folder, small_network, stand_in

THREAT = Threat("linf", 0.01)
IMAGES = stand_in(Shape((1, 6, 6), 3), 60)


def test_a_finished_training_continues(tmp_path: Path) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    first, state = without_time(run), load_tensors(run.last)[0]
    assert recipe_of(run).epochs == 1
    longer = extend(run, small(epochs=1), 2)
    assert recipe_of(run).epochs == longer.epochs == 3
    assert all(torch.equal(load_tensors(run.last)[0][name], tensor) for name, tensor in state.items())
    fit(longer, tmp_path, how=QUIET)
    rows = without_time(run)
    assert rows[:1] == first
    assert [row["epoch"] for row in rows] == [1, 2, 3]


def test_the_same_command_resumes_an_extended_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in its second epoch, it still ends at three; only then more epochs are added."""
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    steps = 0

    def interrupting(*arguments: Any, **added: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            signal.raise_signal(signal.SIGTERM)
        return train_step(*arguments, **added)

    monkeypatch.setattr("atent.training.fit.train_step", interrupting)
    with pytest.raises(Interrupted):
        fit(extend(run, small(epochs=1), 2), tmp_path, how=QUIET)
    monkeypatch.undo()
    capsys.readouterr()
    resumed = extend(run, small(epochs=1), 2)
    assert "is at epoch 1 of 3; --more-epochs 2 adds none" in capsys.readouterr().err
    fit(resumed, tmp_path, how=QUIET)
    assert len(run.history()) == recipe_of(run).epochs == 3
    settle(run)
    assert extend(run, small(epochs=1), 2).epochs == 5


def test_the_same_command_adds_nothing_after_a_kill_that_came_after_the_last_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    fit(extend(run, small(epochs=1), 2), tmp_path, how=QUIET)  # and no `settle`: the command was killed
    before = run.last.read_bytes()
    same = extend(run, small(epochs=1), 2)
    assert "has all 3 epochs of a command that was killed after the last one; --more-epochs 2 adds none" in (
        capsys.readouterr().err
    )
    fit(same, tmp_path, how=QUIET)
    assert run.last.read_bytes() == before
    settle(run)
    assert extend(run, small(epochs=1), 2).epochs == 5
    assert [path.name for path in tmp_path.glob(".more-epochs-*")] == [".more-epochs-5"]


def test_the_command_ends_what_it_began(tmp_path: Path) -> None:
    words = ["train", "demo", "--out", tmp_path, "--threads", 1, *SETTINGS, "--set", "epochs=1"]
    assert atent(*words) == 0
    for epochs in (2, 3):
        assert atent(*words, "--more-epochs", 1) == 0
        assert len(Run(tmp_path).history()) == epochs
    assert not list(tmp_path.glob(".more-epochs-*"))


def test_a_training_that_stopped_early_gets_no_more_epochs(tmp_path: Path) -> None:
    recipe = small(epochs=4, patience=1, optimizer__lr=1e-9, averaging=0.0)
    run = fit(recipe, tmp_path, how=QUIET)
    done = len(run.history())
    assert done < 4
    with pytest.raises(UserError, match=f"--more-epochs 2: .* stopped early, after epoch {done} of 4"):
        extend(run, recipe, 2)


def test_a_kill_while_a_training_is_extended_loses_nothing(tmp_path: Path) -> None:
    run = fit(small(epochs=1), tmp_path, how=QUIET)
    before = run.recipe_file.read_bytes()
    extend(run, small(epochs=1), 2)
    run.recipe_file.write_bytes(before)  # the checkpoint is written first
    assert len(fit(extend(run, small(epochs=1), 2), tmp_path, how=QUIET).history()) == 3


def test_more_epochs_of_another_recipe_or_of_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="--more-epochs 2: no training in"):
        extend(Run(tmp_path / "none"), small(), 2)
    run = fit(small(epochs=1), tmp_path / "run", how=QUIET)
    before = (run.recipe_file.read_bytes(), run.last.read_bytes())
    with pytest.raises(UserError, match="different: seed"):
        extend(run, small(epochs=1, seed=1), 2)
    assert (run.recipe_file.read_bytes(), run.last.read_bytes()) == before
    with pytest.raises(UserError, match=r"different: epochs.*--more-epochs N continues"):
        fit(small(epochs=2), tmp_path / "run", how=QUIET)
    capsys.readouterr()
    assert atent("train", "demo", "--out", tmp_path / "none", "--more-epochs", 1) == 2
    assert capsys.readouterr().err.startswith("error: --more-epochs 1: no training in ")


def test_a_run_of_own_images_opens_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, after run and data moved together, and with --data after the data moved alone."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    own_folder(Path("own"))
    recipe = tiny(data="own", epochs=1, batch=16).model_copy(update={"validation": "auto"})
    run = fit(recipe, "runs/own", how=QUIET)

    def names(folder: Path, **options: Any) -> list[str]:
        images = open_target(folder, **options).images
        assert isinstance(images.x, Files)
        assert len(images.batch(slice(1))[1]) == 1  # the files are there
        return sorted(images.x.names)

    known = names(run.folder)
    record = run.data_record()
    monkeypatch.chdir(tmp_path)
    assert names(here / "runs" / "own") == known
    assert fit(recipe, here / "runs" / "own", how=QUIET).data_record() == record
    here.rename(there)
    assert names(there / "runs" / "own") == known
    (there / "own").rename(tmp_path / "images")
    with pytest.raises(UserError, match=r"was trained on own, which is not there; if it has moved: --data NEW-PLACE"):
        open_target(there / "runs" / "own")
    shutil.copy(next((tmp_path / "images" / "2").iterdir()), tmp_path / "images" / "2" / "new.png")
    assert names(there / "runs" / "own", data=str(tmp_path / "images")) == known


def test_held_out_images_by_default_suit_any_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_folder(Path("own"))
    recipe = "data = 'own'\nmodel = 'small-cnn'\nthreat = 'linf:8/255'\nepochs = 1\n[defense]\nname = 'standard'\n"
    Path("mine.toml").write_text(recipe)
    assert atent("train", "mine.toml", "--threads", 1) == 0
    run = Run(Path("runs/mine"))
    (row,) = run.history()
    trained = sum(map(len, (run.data_record() or {})["train"].values()))
    assert row["examples"] == trained // 10


@pytest.mark.parametrize(("count", "held"), [(60_000, 5000), (50_000, 5000), (2000, 200), (19, 1), (4, 1), (2, 1)])
def test_a_tenth_is_held_out_and_5000_at_most(count: int, held: int) -> None:
    images = Images(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count) % 2, ("a", "b"))
    assert [len(part) for part in hold_out(images, "auto", torch.Generator())] == [count - held, held]


def test_an_older_run_keeps_its_5000_held_out_images() -> None:
    table = {"data": "mnist", "model": "lenet5", "threat": "l2:1", "epochs": 2, "defense": {"name": "standard"}}
    older, now = parse_recipe({**table, "validation": 5000}, "older"), parse_recipe(table, "now", make="all")
    assert now.validation == "auto"
    assert now.resuming(older).validation == 5000
    assert now.resuming(parse_recipe(table, "new")).validation == "auto"
    asked = parse_recipe({**table, "validation": 500}, "asked", make="all")
    with pytest.raises(UserError, match="different: validation"):
        asked.resuming(older).check_same(older, Path("run"))


def interrupted_attack(folder: Path, monkeypatch: pytest.MonkeyPatch, signals: int, attack: Any) -> int:
    """Ctrl-C, so many times, during the second batch; the number of rows that the file has then."""
    batches = 0

    def interrupting(*arguments: Any, **options: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2:
            for _ in range(signals):
                signal.raise_signal(signal.SIGINT)
        return attack_batch(*arguments, **options)

    monkeypatch.setattr(attacks, "attack_batch", interrupting)
    target = Target(small_network(dropout=0), "abc", "toy", IMAGES, "toy", None, Path("never"))
    attack_target(target, Planned.of(attack, {"name": "toy"}, THREAT), folder)
    return batches


CASCADE = Cascade((Apgd(steps=2), Square(queries=2)))


@pytest.mark.parametrize(("signals", "rows"), [(1, 50), (2, 25)])
def test_ctrl_c_answers_and_says_what_is_kept(
    signals: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 images are fewer than a batch; they are saved in parts of 25. The second Ctrl-C ends the part at once."""
    with pytest.raises(Interrupted) as caught:
        interrupted_attack(tmp_path, monkeypatch, signals, CASCADE)
    (file,) = (tmp_path / "attack").glob("*.jsonl")
    assert "stopping after this batch; press Ctrl-C again to stop now" in capsys.readouterr().err
    assert f"the rows of {rows} of 60 images in {file}" in str(caught.value)
    assert file.read_text().count('"index"') == rows
    monkeypatch.undo()
    whole = tmp_path / "whole"
    target = Target(small_network(dropout=0), "abc", "toy", IMAGES, "toy", None, Path("never"))
    for folder in (tmp_path, whole):
        attack_target(target, Planned.of(CASCADE, {"name": "toy"}, THREAT), folder)
    (other,) = (whole / "attack").glob("*.jsonl")
    assert RowFile(ATTACK, file).read().rows == RowFile(ATTACK, other).read().rows


def test_an_attack_that_draws_for_a_batch_keeps_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interrupted_attack(tmp_path, monkeypatch, 0, Pgd(steps=1)) == 1


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (Interrupted(signal.SIGINT, "epoch 3"), "stopped by SIGINT; saved: epoch 3. Run the same command to resume."),
        (
            Interrupted(signal.SIGINT, "epoch 2", now=True),
            "stopped now; kept: epoch 2. Run the same command to resume.",
        ),
        (KeyboardInterrupt(), "stopped. Run the same command to resume."),
    ],
)
def test_the_command_line_repeats_it(
    stop: BaseException, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr("atent.report.terminal.tell", stopped)
    assert atent("list", "data") == 130
    assert capsys.readouterr().err == f"{words}\n"


def test_a_training_says_which_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C comes in batch 3; the state of two batches was saved."""
    steps = 0

    def interrupting(*arguments: Any, **added: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return train_step(*arguments, **added)

    monkeypatch.setattr("atent.training.fit.train_step", interrupting)
    with pytest.raises(Interrupted, match=r"nothing, no checkpoint was saved yet"):
        fit(small(), tmp_path / "none", how=QUIET)
    steps = 0
    with pytest.raises(Interrupted, match=r"last\.safetensors \(epoch 1, batch 2\)"):
        fit(small(), tmp_path / "saved", how=replace(QUIET, checkpoint_batches=2))
