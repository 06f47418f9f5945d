import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from atent.defenses import DEFENSES
from atent.errors import UserError
from atent.storage.files import load_tensors
from atent.storage.run import Run
from atent.training.fit import fit
from short_runs import QUIET, tiny
from toys import own_folder


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


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(tiny(epochs=1), tmp_path_factory.mktemp("parent"), how=QUIET)


@pytest.mark.parametrize(
    ("defense", "optimizer"), [*((name, "sgd") for name in DEFENSES), ("atent", "adam"), ("atent", "entropy-sgd")]
)
def test_every_defense_and_optimizer_starts_from_the_weights_given(
    defense: str, optimizer: str, parent: Run, tmp_path: Path
) -> None:
    """With steps that change next to nothing, what comes out is what went in."""
    slow = {"optimizer.step": 1e-9, "optimizer.noise": 0.0} if optimizer == "entropy-sgd" else {"optimizer.lr": 1e-9}
    changes: dict[str, Any] = {"defense.name": defense, "optimizer.name": optimizer, "weights": str(parent.folder)}
    recipe = tiny(epochs=1, validation=5950, averaging=0, **changes, **slow)
    tuned, given = (load_tensors(run.best)[0] for run in (fit(recipe, tmp_path / "run", how=QUIET), parent))
    assert any(not torch.equal(tuned[name], given[name]) for name in given)
    for name in given:
        torch.testing.assert_close(tuned[name], given[name], rtol=0, atol=1e-6)


def test_weights_that_do_not_fit_leave_no_folder_behind(tmp_path: Path) -> None:
    first = fit(tiny(epochs=1), tmp_path / "first", how=QUIET)
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, weights=str(first.folder))
    with pytest.raises(UserError, match=r"--reset classifier\.fc3"):
        fit(recipe, tmp_path / "second", how=QUIET)
    assert not (tmp_path / "second").exists()
