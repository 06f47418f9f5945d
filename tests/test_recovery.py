"""A training that fails is taken back to its last good state with half the learning rate, at most so many times."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atent.training.alarms
import atent.training.epoch_end
import atent.training.fit
import atent.training.recovery
import atent.training.state
from atent.errors import UserError
from atent.models import Shape
from atent.recipe import Recipe
from atent.storage.files import load_tensors, save_tensors
from atent.storage.run import Run
from atent.training.alarms import Tally
from atent.training.fit import fit
from atent.training.loss_scale import NotFiniteError
from atent.training.options import TrainingOptions
from atent.training.recovery import is_good
from atent.training.state import State
from atent.training.step import Step
from short_runs import assert_same_run, tiny
from toys import stand_in

LEARNS, PLATEAU = Step(0.5, 0.5, 40, 0.0), Step(2.3026, 2.3026, 5, 0.0)


class KilledError(Exception):
    pass


def recipe(**changes: object) -> Recipe:
    """Four batches an epoch, four epochs, learning rate 1 throughout."""
    fixed = {"schedule__name": "constant", "schedule__warmup": 0.0, "optimizer__lr": 1.0, "averaging": 0.0}
    return tiny(**{"epochs": 4, "recoveries": 2, **fixed, **changes})


class Toy:
    """Each batch adds the learning rate to a bias. The training fails from epoch 3 on while the rate exceeds `least`.

    The bias counts the batches: at rate 1 it is 8 when epoch 3 begins.
    """

    def __init__(self, how: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.how, self.least, self.said, self.after = how, least, list[str](), 8
        self.bias: list[float] = []
        self.first: float | None = None
        monkeypatch.setattr(atent.training.fit, "train_step", self.step)
        monkeypatch.setattr(atent.training.epoch_end, "evaluate_held", self.evaluate)
        for module in (atent.training.alarms, atent.training.recovery, atent.training.state):
            monkeypatch.setattr(module, "RECENT", 4)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Step:
        bias, self.rate = next(model.parameters()).data.view(-1)[:1], optimizer.param_groups[0]["lr"]
        self.first = bias.item() if self.first is None else self.first
        bias += self.rate
        self.bias.append(round(bias.item() - self.first, 4))
        failing = self.bias[-1] > self.after and self.rate > self.least
        if failing and self.how == "not finite":
            raise NotFiniteError
        return PLATEAU if failing and self.how == "stuck" else LEARNS

    def evaluate(self, row: dict[str, Any], *_: Any) -> None:
        failing = self.how == "collapsed" and row["epoch"] > 2 and self.rate > self.least
        row |= {"clean": 0.9, "robust": 0.1 if failing else 0.6, "examples": 20}

    def fit(self, out: Path, **changes: object) -> Run:
        return fit(recipe(**changes), out, how=TrainingOptions(say=self.said.append))


FAILURES = {
    "collapsed": "epoch 3, batch 4: robust accuracy on held-out images collapsed to 10.00; back to epoch 3, batch 0",
    "stuck": "epoch 3, batch 4: the loss is stuck at 2.303, that of",
    "not finite": "epoch 3, batch 0: the loss or its gradient is not finite; back to epoch 3, batch 0",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failed_training_is_taken_back_and_says_so(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy(how, 0.3, monkeypatch)
    run = toy.fit(tmp_path)
    told = [line for line in toy.said if "back to" in line]
    assert told[0].startswith(FAILURES[how])
    assert told[0].endswith("with the learning rate times 0.5 (recovery 1 of 2)")
    assert told[1].endswith("back to epoch 3, batch 0, with the learning rate times 0.25 (recovery 2 of 2)")
    assert toy.bias[-1] == 8 + 8 * 0.25  # from the good state, with a quarter of the rate
    assert [row["epoch"] for row in run.history()] == [1, 2, 3, 4]
    assert [row.get("recoveries") for row in run.history()] == [None, None, 2, 2]
    assert not any(row.get("collapsed") or row.get("plateau") for row in run.history())
    assert not run.good.exists()


def test_after_the_last_recovery_a_collapse_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy("collapsed", 0.0, monkeypatch)
    run = toy.fit(tmp_path)
    assert [row.get("collapsed", False) for row in run.history()] == [False, False, True]
    assert len([line for line in toy.said if "back to" in line]) == 2
    assert "collapsed from 60.00 to 10.00" in toy.said[-1]
    assert load_tensors(run.best)[1]["log"]["epoch"] == 2
    with pytest.raises(UserError, match="is not finite"):
        Toy("not finite", 0.0, monkeypatch).fit(tmp_path / "other")


def test_without_recoveries_nothing_is_kept_and_a_collapse_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy("collapsed", 0.0, monkeypatch)
    written: list[Path] = []
    monkeypatch.setattr(atent.training.state, "save_tensors", noting(written))
    run = toy.fit(tmp_path, recoveries=0)
    assert len(run.history()) == 3
    assert set(written) == {run.last, run.best}


def noting(written: list[Path], killed_at: int = -1) -> Callable[..., None]:
    def save(path: Path, *rest: Any) -> None:
        if len(written) == killed_at:
            raise KilledError
        written.append(path)
        save_tensors(path, *rest)

    return save


@pytest.mark.parametrize("killed_at", [4, 5, 6, 8])
def test_a_kill_at_any_write_changes_nothing(killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes: the good state at the start, `last` and the good state after epochs 1 and 2, then the recoveries."""
    whole = Toy("collapsed", 0.3, monkeypatch).fit(tmp_path / "whole")
    monkeypatch.setattr(atent.training.state, "save_tensors", noting([], killed_at))
    with pytest.raises(KilledError):
        Toy("collapsed", 0.3, monkeypatch).fit(tmp_path / "killed")
    monkeypatch.setattr(atent.training.state, "save_tensors", save_tensors)
    assert_same_run(Toy("collapsed", 0.3, monkeypatch).fit(tmp_path / "killed"), whole)


def test_a_training_that_never_learned_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy("stuck", 0.6, monkeypatch)
    toy.after = 0
    run = toy.fit(tmp_path)
    assert next(line for line in toy.said if "back to" in line).endswith(
        "back to epoch 1, batch 0, with the learning rate times 0.5 (recovery 1 of 2)"
    )
    assert [row["recoveries"] for row in run.history()] == [1] * 4


@pytest.mark.parametrize(
    ("right", "good"),
    [([0.5] * 40, True), ([0.5] * 20 + [0.3] * 20, False), ([0.1] * 40, False), ([0.1] * 20 + [0.5] * 20, True)],
)
def test_a_state_is_good_if_the_network_has_learned_and_is_not_forgetting(right: list[float], good: bool) -> None:
    images = stand_in(Shape((1, 2, 2), 10), 1000)
    tally = Tally(recent=[1.0] * len(right), recent_right=right)
    state = State(nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]), None, tally=tally)
    assert is_good(state, images) is good
