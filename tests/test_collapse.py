"""Catastrophic overfitting: noticed on the held-out images, told, and the best weights kept."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.defenses import Term
from atent.recipe import load_recipe
from atent.storage.files import load_tensors
from atent.training.alarms import collapsed, unwatched
from atent.training.fit import fit
from atent.training.options import TrainingOptions
from atent.training.state import score
from short_runs import TINY


@pytest.mark.parametrize(
    ("robust", "expected"),
    [([0.4, 0.5, 0.24], True), ([0.4, 0.5, 0.26], False), ([0.02, 0.0], False), ([0.5, 0.1, 0.5], False), ([], False)],
)
def test_a_collapse_is_less_than_half_of_what_there_was(robust: list[float], expected: bool) -> None:
    assert collapsed([{"robust": value, "clean": 0.8} for value in robust], constant=0.1) is expected
    assert not collapsed([{"loss": 1.0}], constant=0.1)  # no held-out images, no evaluation


def test_a_first_epoch_of_constant_answers_is_nothing_to_fall_from() -> None:
    """Two classes: a network that always says the same is right at half of the images, whatever the attack."""
    learning = [{"clean": 0.5, "robust": 0.5}, {"clean": 0.9, "robust": 0.2}]
    assert not collapsed(learning, constant=0.5)
    assert collapsed(learning, constant=0.1)
    assert collapsed([*learning, {"clean": 0.9, "robust": 0.5}, learning[-1]], constant=0.5)  # now it has fallen


class Forgetting:
    """Learns for two epochs of four batches, then points every weight the wrong way."""

    calls = 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *_: Any) -> Iterator[Term]:
        type(self).calls += 1
        logits = model(x)
        sign = 1 if self.calls <= 8 else -1
        yield Term(sign * nn.functional.cross_entropy(logits, y, reduction="none"), logits, x)


def test_a_training_that_diverges_stops_too_and_is_not_called_overfitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forgetting, "calls", 0)
    said: list[str] = []
    changes = {"defense.name": f"{__name__}:Forgetting", "threat": "linf:0.001", "epochs": 9, "averaging": 0}
    run = fit(
        load_recipe("demo", TINY | changes | {"optimizer.lr": 0.05}), tmp_path, how=TrainingOptions(say=said.append)
    )
    assert 3 <= len(run.history()) < 9
    assert "collapsed from" in said[-1]
    assert "the training diverged" in said[-1]
    assert "overfitting" not in said[-1]
    best, last = (load_tensors(file)[0] for file in (run.best, run.last))
    assert not torch.equal(best["classifier.fc1.weight"], last["classifier.fc1.weight"])


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"validation": 0}, "with validation = 0 a collapse of single-step training is not detected"),
        ({"monitor.name": "fgsm"}, r"a monitor with one step \(fgsm\)"),
        ({"monitor.steps": 1}, r"a monitor with one step \(apgd\)"),
        ({}, "^$"),
        ({"validation": 0, "defense.name": "pgd-at"}, "^$"),
    ],
)
def test_a_single_step_training_that_nobody_watches_is_told_so(changes: dict[str, Any], caution: str) -> None:
    recipe = load_recipe("demo", {"defense.name": "fast"} | changes)
    assert re.search(caution, unwatched(recipe))


class SuddenlyStrong:
    """A monitor that does nothing in the first two epochs, and then turns every image into the same one."""

    calls = 0

    def __call__(self, _model: nn.Module, x: Tensor, *_: Any) -> Tensor:
        type(self).calls += 1
        return x if self.calls <= 2 else torch.zeros_like(x)


@pytest.mark.filterwarnings("ignore::atent.errors.ThreatWarning")  # the whole box on purpose
@pytest.mark.parametrize(("choose", "epochs"), [("robust", 3), ("clean", 5)])
def test_a_training_that_collapses_stops_and_says_so(
    choose: str, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuddenlyStrong, "calls", 0)
    said: list[str] = []
    changes = {"monitor": {"name": f"{__name__}:SuddenlyStrong"}, "choose": choose, "threat": "linf:1"}
    recipe = load_recipe("demo", TINY | changes | {"epochs": 5, "defense.name": "standard", "averaging": 0})
    run = fit(recipe, tmp_path, how=TrainingOptions(say=said.append))
    assert len(run.history()) == epochs
    assert [row.get("collapsed", False) for row in run.history()][:3] == [False, False, choose == "robust"]
    if choose == "robust":
        assert "collapsed from" in said[-1]
        assert "catastrophic overfitting" in said[-1]
        info = load_tensors(run.best)[1]
        assert f"has the weights of epoch {info['log']['epoch']}" in said[-1]
        assert info["log"]["epoch"] < 3
    assert len(fit(recipe, tmp_path, how=TrainingOptions(say=said.append)).history()) == epochs  # it stays stopped


@pytest.mark.parametrize(("defense", "expected"), [("standard", "clean"), ("atent", "robust")])
def test_plain_trainings_are_chosen_by_clean_accuracy(defense: str, expected: str) -> None:
    recipe = load_recipe("demo", {"defense.name": defense})
    assert recipe.chosen_by == expected
    rows = [{"clean": 0.99, "robust": 0.0}, {"clean": 0.3, "robust": 0.1}]
    assert max(rows, key=lambda row: score(row, recipe.chosen_by)) == rows[expected == "robust"]
