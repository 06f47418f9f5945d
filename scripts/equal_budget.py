"""Trainings on MNIST at linf .3 with the same cost, used by `ablation.py`, `side_by_side.py` and `entropy.py`.

In one minute a two-core machine computes PER_MINUTE gradients of `small-cnn` with respect to an image. The number of
training images is chosen so that images times cost per image equals the budget of the training. The cost of an image
is the number of its passes (equal passes) or the time that they take (equal time).
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atent.attacks import Pgd
from atent.data.dataset import load
from atent.data.images import hold_out
from atent.evaluation.attack import attack_images
from atent.models.weights import load_weights
from atent.network import Passes
from atent.planning.passes import mean_cost
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import Recipe, load_recipe
from atent.storage.files import read_json, write_json
from atent.storage.rows import clean_rate, robust_rate
from atent.storage.run import Run
from atent.training.fit import fit
from atent.training.start import make_model

HELD_OUT = 2000  # images for evaluation, never trained on
EVALUATION = "judged.json"  # its name in results of earlier versions, too
IMAGES = 60_000 - HELD_OUT
PER_MINUTE = IMAGES * 11 / 5  # ten-step PGD training (11 passes) sees all images in five minutes
FORWARD, TO_WEIGHTS = 0.41, 1.48  # the time of other passes, measured at batch 64 in one thread, the other core busy
# Time of a training step / time of its passes, batch 64, two idle cores: TRADES 1.14, PGD training 1.08, standard 1.33.
OVERHEAD = 1.14
SHARED = {
    "epochs": 1,
    "batch": 64,
    "averaging": 0.99,
    "monitor_examples": 10,  # enough for a training of one epoch
    "schedule.name": "one-cycle",
    "schedule.warmup": 0.2,
    "schedule.eps_warmup": 1.6,
}


def passes_of(recipe: Recipe) -> float:
    """Passes per image; a forward or a backward pass counts half."""
    return mean_cost(recipe, lambda passes: (passes.forward + passes.backward) / 2)


def time_of(recipe: Recipe) -> float:
    """The time per image, in units of a gradient with respect to the image."""

    def time(passes: Passes) -> float:
        to_image = passes.backward - passes.to_weights
        only_forward = passes.forward - passes.backward
        return FORWARD * only_forward + to_image + TO_WEIGHTS * passes.to_weights

    return OVERHEAD * mean_cost(recipe, time)


def recipe_for(minutes: float, changes: Mapping[str, Any], seed: int, cost: Callable[[Recipe], float]) -> Recipe:
    """`mnist-linf-standard` with these changes and as many images as the budget allows; the rest is held out."""
    recipe = load_recipe("mnist-linf-standard", {**SHARED, "seed": seed, **changes})
    return sized(recipe, minutes * PER_MINUTE / cost(recipe), 60_000, HELD_OUT)


def sized(recipe: Recipe, images: float, total: int, held: int) -> Recipe:
    """The recipe with as many epochs, and images per epoch, as give so many images; at least `held` are held out."""
    most = total - held
    epochs = math.ceil(images / most - 0.01)
    each = max(recipe.batch, min(most, int(images / epochs)))
    return recipe.model_copy(update={"epochs": epochs, "validation": total - each})


def images_of(recipe: Recipe) -> int:
    """The number of images that a training sees, summed over its epochs."""
    return (60_000 - int(recipe.validation)) * recipe.epochs


def evaluated(
    recipe: Recipe, folder: Path, data_dir: Path, examples: int = HELD_OUT, steps: int = 40
) -> dict[str, Any]:
    """Train if not done yet, and attack the best weights on images that no training with this seed has used."""
    run, file = Run(folder), folder / EVALUATION
    if not file.exists():
        fit(recipe, folder, data_dir=data_dir)
        # The smaller held-out sets of a seed are subsets of the larger ones.
        _, held = hold_out(load("mnist", "train", data_dir), HELD_OUT, derive(recipe.seed, "hold-out"))
        held = held.take(slice(examples))
        model = make_model(recipe, held)
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
            "passes": passes_of(recipe),
            "images": images_of(recipe),
            "radius": run.history()[-1]["radius"],
            "seconds": sum(epoch["seconds"] for epoch in run.history()),
            "defense": recipe.defense,
            "optimizer": recipe.optimizer,
        }
        write_json(file, row)
    return read_json(file)
