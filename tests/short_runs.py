"""Trainings of a second or two."""

from typing import Any

import torch

from atent.recipe import Recipe, load_recipe
from atent.storage.files import load_tensors
from atent.storage.run import Run
from atent.training.options import TrainingOptions

# 200 training images of mnist-small in four batches.
TINY = {"validation": 5800, "batch": 50, "epochs": 2, "monitor_examples": 20, "monitor.steps": 2}
SHORT_CHAIN = {"defense.steps": 2}
QUIET = TrainingOptions(say=lambda _: None)


def tiny(**changes: object) -> Recipe:
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    name = str(changed.get("defense.name", "atent"))
    chain = {} if name in ("standard", "fast", "n-fgsm", "gaussian", "consistency") or ":" in name else SHORT_CHAIN
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
