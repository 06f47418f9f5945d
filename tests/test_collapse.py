"""Catastrophic overfitting: noticed on the held-out images, told, and the best weights kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.defenses import Term
from atent.runs import load_tensors
from atent.state import collapsed
from atent.train import How, fit
from short_runs import tiny


@pytest.mark.parametrize(
    ("robust", "expected"),
    [([0.4, 0.5, 0.24], True), ([0.4, 0.5, 0.26], False), ([0.02, 0.0], False), ([0.5, 0.1, 0.5], False), ([], False)],
)
def test_a_collapse_is_less_than_half_of_what_there_was(robust: list[float], expected: bool) -> None:
    assert collapsed([{"robust": value} for value in robust]) is expected
    assert not collapsed([{"loss": 1.0}])  # no held-out images, no judgement


class Forgetting:
    """Learns for two epochs of four batches, then points every weight the wrong way."""

    calls = 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *_: Any) -> Iterator[Term]:
        type(self).calls += 1
        logits = model(x)
        sign = 1 if self.calls <= 8 else -1
        yield Term(sign * nn.functional.cross_entropy(logits, y, reduction="none"), logits, x)


def test_a_training_that_collapses_stops_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forgetting, "calls", 0)
    said: list[str] = []
    recipe = tiny(
        defense__name=f"{__name__}:Forgetting",
        threat="linf:0.001",
        epochs=9,
        averaging=0,
        optimizer__lr=0.05,
    )
    run = fit(recipe, tmp_path, how=How(say=said.append))
    assert 3 <= len(run.history()) < 9
    assert "collapsed from" in said[-1]
    assert "catastrophic overfitting" in said[-1]
    best, last = (load_tensors(file)[0] for file in (run.best, run.last))
    assert not torch.equal(best["classifier.fc1.weight"], last["classifier.fc1.weight"])
    assert len(fit(recipe, tmp_path, how=How(say=said.append)).history()) == len(run.history())  # it stays stopped
