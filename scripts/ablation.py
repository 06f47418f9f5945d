"""What entropy adds: ATENT with one factor changed at a time, and PGD training, all at equal passes.

python scripts/ablation.py --data-dir DATA                      trains what is missing, then prints the table
python scripts/ablation.py --data-dir DATA --seeds 1 --variants pgd-at noise-0.1

Each training sees the images that five minutes of a two-core machine pay for: its epoch is cut so that images times
passes per image is the same for all. PGD-40 judges the last weights on 2,000 held-out MNIST images, the same for all
variants of a seed. Stopped and started again, it goes on; two processes with different seeds can share the work.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from atent.attacks import Pgd
from atent.data import load
from atent.evaluate import attack_images
from atent.images import Images, hold_out
from atent.machine import prepare
from atent.passes import counted
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import Recipe, load_recipe
from atent.rows import clean_rate, robust_rate
from atent.runs import Run, write_rows
from atent.train import fit
from atent.weights import load_weights

ATENT: dict[str, Any] = {"defense.name": "atent", "defense.steps": 10, "defense.reach": 2.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "pgd-at": {"defense.name": "pgd-at", "defense.steps": 10},
    "atent": ATENT,
    "noise-0.1": ATENT | {"defense.noise": 0.1},
    "share-1": ATENT | {"defense.share": 1.0},
    "pull-auto": ATENT | {"defense.pull": "auto"},
    # The raw gradient is a thousandth of the sign: with steps fifty times as large the mean chain from x just
    # reaches the radius (on the demo's network).
    "raw": ATENT | {"defense.direction": "raw", "defense.reach": 100.0},
    "project-every": ATENT | {"defense.project": "every"},
    "project-never": ATENT | {"defense.project": "never"},
    "start-corner": ATENT | {"defense.start": "corner"},
    "mode-train": ATENT | {"defense.mode": "train"},
}
HELD_OUT = 2000
PASSES = 58_000 * 11  # image passes a training: all images that are not held out, by ten-step PGD training


def passes_per_image(recipe: Recipe) -> float:
    """Forward passes (each has its backward one) that the defense takes for an image, counted."""
    images = Images(torch.full((2, 1, 28, 28), 128, dtype=torch.uint8), torch.tensor([0, 1]), tuple("0123456789"))
    model = recipe.make_model(images).train()
    with counted(model) as passes:
        x, y = images.batch(slice(2))
        for term in recipe.make_defense()(model, x, y, recipe.make_threat(), derive(0)):
            term.loss.mean().backward()
    return passes.forward / 2


def recipe_of(variant: str, seed: int) -> Recipe:
    """One epoch of as many images as the passes pay for; the rest is held out."""
    shared = {"epochs": 1, "batch": 64, "seed": seed, "optimizer.lr": 0.05, "averaging": 0.99, "monitor_examples": 10}
    recipe = load_recipe("mnist-linf-atent-fast", VARIANTS[variant] | shared)
    return recipe.model_copy(update={"validation": 60_000 - int(PASSES / passes_per_image(recipe))})


def judge(run: Run, recipe: Recipe, data_dir: Path) -> dict[str, Any]:
    """PGD-40 on held-out images: smaller held-out sets of a seed are part of the larger ones."""
    _, held = hold_out(load("mnist", "train", data_dir), HELD_OUT, derive(recipe.seed, "hold-out"))
    model = recipe.make_model(held)
    load_weights(model, run.best)
    rows = []
    with progress(f"PGD-40 {run.folder.name}", len(held), "images", brief=True) as show:
        for batch in attack_images(model, held, Pgd(steps=40), recipe.make_threat()):
            rows += batch
            show(len(rows))
    log = json.loads(run.log.read_text(encoding="utf-8").splitlines()[-1])
    return {
        "clean": clean_rate(rows).value,
        "robust": robust_rate(rows).value,
        "examples": len(rows),
        "passes": passes_per_image(recipe),
        "radius": log["radius"],
        "defense": recipe.defense,
    }


def results(out: Path, seeds: list[int], variants: list[str], data_dir: Path) -> Iterator[dict[str, Any]]:
    for seed in seeds:
        for variant in variants:
            run = Run(out / f"{variant}-{seed}")
            file = run.folder / "judged.json"
            if not file.exists():
                recipe = recipe_of(variant, seed)
                fit(recipe, run.folder, data_dir=data_dir)
                row = {"variant": variant, "seed": seed, **judge(run, recipe, data_dir)}
                write_rows(file, [row])
            yield json.loads(file.read_text(encoding="utf-8"))


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and spread (standard deviation over the seeds) of each variant, the most robust first."""
    lines = ["| variant | passes | seeds | clean | PGD-40 | radius |", "|---|---|---|---|---|---|"]
    found = {row["variant"]: [other for other in rows if other["variant"] == row["variant"]] for row in rows}
    for variant, of in sorted(found.items(), key=lambda item: -statistics.mean(row["robust"] for row in item[1])):
        cells = [variant, f"{of[0]['passes']:g}", str(len(of))]
        for key in ("clean", "robust"):
            values = [100 * row[key] for row in of]
            cells.append(f"{statistics.mean(values):.2f} +- {statistics.stdev(values) if len(of) > 1 else 0:.2f}")
        cells.append(f"{statistics.mean(row['radius'] for row in of):.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prepare(given.threads)
    print(table(list(results(given.out, given.seeds, given.variants, given.data_dir))))
