import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from atent.errors import UserError
from atent.runs import load_tensors
from atent.train import fit
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


def test_weights_that_do_not_fit_leave_no_folder_behind(tmp_path: Path) -> None:
    first = fit(tiny(epochs=1), tmp_path / "first", how=QUIET)
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, weights=str(first.folder))
    with pytest.raises(UserError, match=r"--reset classifier\.fc3"):
        fit(recipe, tmp_path / "second", how=QUIET)
    assert not (tmp_path / "second").exists()
