"""Trainings on MNIST at linf .3 that cost the same: shared by `ablation.py` and `side_by_side.py`.

The measure is forward plus backward passes of an image, counted. A minute of a two-core machine pays for UNITS of them
on `small-cnn`. A training's images are cut so that images times passes is what its minutes pay for.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atent.attacks import Pgd
from atent.data import load
from atent.defenses.cost import passes_per_image
from atent.evaluate import attack_images
from atent.images import hold_out
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import Recipe, load_recipe
from atent.rows import clean_rate, robust_rate
from atent.runs import Run, write_rows
from atent.train import fit
from atent.weights import load_weights

HELD_OUT = 2000  # images that judge; never trained on
IMAGES = 60_000 - HELD_OUT
UNITS = IMAGES * 22 // 5  # ten-step PGD training (11 passes each way) sees all images in five minutes
SHARED = {
    "epochs": 1,
    "batch": 64,
    "averaging": 0.99,
    "monitor_examples": 10,  # enough where there is one epoch
    "schedule.name": "one-cycle",
    "schedule.warmup": 0.2,
    "schedule.eps_warmup": 1.6,
}


def units_per_image(recipe: Recipe) -> int:
    """Passes, forward and backward; an optimizer of several steps a batch takes as many times more."""
    passes = passes_per_image(recipe.make_defense(), recipe.make_threat())
    steps = recipe.optimizer["steps"] if recipe.optimizer["name"] == "entropy-sgd" else 1
    return int(steps * (passes.forward + passes.backward))


def recipe_for(minutes: float, changes: Mapping[str, Any], seed: int) -> Recipe:
    """`mnist-linf-standard` with these changes, and as many images as the minutes pay for; the rest is held out."""
    recipe = load_recipe("mnist-linf-standard", {**SHARED, "seed": seed, **changes})
    images = minutes * UNITS / units_per_image(recipe)
    epochs = math.ceil(images / IMAGES - 0.01)
    return recipe.model_copy(update={"epochs": epochs, "validation": 60_000 - min(IMAGES, int(images / epochs))})


def judged(recipe: Recipe, folder: Path, data_dir: Path, examples: int = HELD_OUT, steps: int = 40) -> dict[str, Any]:
    """Train, if that was not done yet, and attack the best weights on images held out of every training of the seed."""
    run, file = Run(folder), folder / "judged.json"
    if not file.exists():
        fit(recipe, folder, data_dir=data_dir)
        # The smaller held-out set of a seed is a part of the larger ones.
        _, held = hold_out(load("mnist", "train", data_dir), HELD_OUT, derive(recipe.seed, "hold-out"))
        held = held.take(slice(examples))
        model = recipe.make_model(held)
        load_weights(model, run.best)
        rows = []
        with progress(f"PGD-{steps} {folder.name}", len(held), "images", brief=True) as show:
            for batch in attack_images(model, held, Pgd(steps=steps), recipe.make_threat()):
                rows += batch
                show(len(rows))
        row = {
            "clean": clean_rate(rows).value,
            "robust": robust_rate(rows).value,
            "examples": len(rows),
            "steps": steps,
            "units": units_per_image(recipe),
            "images": (60_000 - int(recipe.validation)) * recipe.epochs,
            "radius": run.history()[-1]["radius"],
            "seconds": sum(epoch["seconds"] for epoch in run.history()),
            "defense": recipe.defense,
            "optimizer": recipe.optimizer,
        }
        write_rows(file, [row])
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
