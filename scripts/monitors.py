"""Which monitor ranks the epochs of a training as much stronger attacks do, and what it costs.

python scripts/monitors.py measure demo --data-dir DATA         for each of TRAININGS; processes can share the work
python scripts/monitors.py table

Trains what is missing and keeps a checkpoint of every epoch in runs/epochs. The averaged weights of each epoch are
attacked on the first images that the recipe holds out of training, by each attack of PARTS. A monitor is a sequence of
these; an image is robust if all of them fail on it. The reference is `strong` with fewer targets and queries. It
attacks the images that are left, in blocks of 25, those that came closest to being misclassified first. After a block
of which it breaks at most one, the others count as robust.

`measure` appends a row per epoch and attack to results/monitors.jsonl, with the margin of each image, positive where it
is misclassified, and skips rows that are there.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from measure_or_table import run
from scipy.stats import kendalltau, spearmanr
from torch import Tensor, nn

from atent.attacks import make_attack
from atent.data.dataset import load
from atent.data.images import Images
from atent.evaluation.attack import attack_batch
from atent.losses import margin
from atent.models.weights import load_weights
from atent.network import answers, borrowed
from atent.recipe import Recipe, load_recipe
from atent.training.fit import fit
from atent.training.start import make_model, split
from atent.training.state import State

ROWS = Path(__file__).parents[1] / "results" / "monitors.jsonl"
TRAININGS: dict[str, dict[str, Any]] = {
    "fast-side": {
        "data": "mnist",
        "epochs": 8,
        "validation": 3584,
        "defense.name": "fast",
        "optimizer.lr": 0.1,
        "monitor.steps": 20,
        "monitor_examples": 500,
    },
    "demo": {},
}
# Each with the passes of an image that it does not break: a step is a forward and a backward pass.
PARTS: dict[str, tuple[dict[str, Any], int]] = {
    "PGD-10": ({"name": "pgd", "steps": 10}, 20),
    "PGD-20": ({"name": "pgd", "steps": 20}, 40),
    "PGD-10 margin": ({"name": "pgd", "steps": 10, "loss": "margin"}, 20),
    "APGD-10": ({"name": "apgd", "steps": 10}, 20),
    "APGD-20": ({"name": "apgd", "steps": 20}, 40),
    "APGD-40": ({"name": "apgd", "steps": 40}, 80),
    "APGD-20 DLR": ({"name": "apgd", "steps": 20, "loss": "dlr"}, 40),
    "Square-100": ({"name": "square", "queries": 100}, 100),
    "Square-200": ({"name": "square", "queries": 200}, 200),
}
MONITORS: list[tuple[str, ...]] = [
    ("PGD-20",),
    ("PGD-10",),
    ("APGD-10",),
    ("APGD-20",),
    ("APGD-40",),
    ("PGD-10", "PGD-10 margin"),
    ("PGD-20", "PGD-10 margin"),
    ("PGD-20", "APGD-20"),
    ("APGD-20", "APGD-20 DLR"),
    ("PGD-10", "Square-100"),
    ("PGD-20", "Square-100"),
    ("PGD-20", "Square-200"),
    ("PGD-10", "PGD-10 margin", "Square-200"),
    ("APGD-10", "Square-100"),
    ("APGD-20", "Square-100"),
    ("APGD-20", "Square-200"),
    ("APGD-20", "APGD-20 DLR", "Square-100"),
]
# `strong` with a third of its targets and a fifth of its queries.
REFERENCE = {
    "name": "cascade",
    "attacks": [
        {"name": "pgd", "steps": 40},
        {"name": "apgd"},
        {"name": "apgd", "loss": "dlr-targeted", "targets": 3},
        {"name": "square", "queries": 1000},
    ],
}
Row = dict[str, Any]


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def recipe_for(training: str) -> Recipe:
    return load_recipe("demo", TRAININGS[training])


def checkpoints(training: str, runs: Path, data_dir: Path | None) -> list[Path]:
    """The last checkpoint of each epoch; trains if one is missing."""
    recipe, folder = recipe_for(training), runs / "epochs" / training
    files = [folder / f"{epoch}.safetensors" for epoch in range(1, recipe.epochs + 1)]
    save = State.save

    def save_and_keep(state: State, path: Path, recipe: Recipe) -> None:
        save(state, path, recipe)
        if state.batch == 0:
            shutil.copy(path, folder / f"{state.epoch}.safetensors")

    if not all(file.exists() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        with patch.object(State, "save", save_and_keep):
            fit(recipe, runs / training, data_dir=data_dir)
    return files


def attacked(name: str, settings: Row, model: nn.Module, images: Images, indices: list[int], threat: str) -> Row:
    began = time.process_time()
    found = attack_batch(model, images, indices, make_attack(settings), threat)
    seconds = round(time.process_time() - began, 1)
    with borrowed(model):
        margins = margin(answers(model, found.x_adv), images.y[indices])
    cost = {"forward": found.cost.forward, "backward": found.cost.backward, "seconds": seconds}
    return {"attack": name, **cost, "indices": indices, "margins": [round(float(one), 3) for one in margins]}


def measure(given: argparse.Namespace) -> None:
    recipe, files = recipe_for(given.training), checkpoints(given.training, given.runs, given.data_dir)
    train = load(recipe.data, "train", given.data_dir)
    _, held = split(recipe, train)
    held = held.take(slice(given.images))
    for epoch, file in reversed(list(enumerate(files, 1))):  # the late ones decide
        model = make_model(recipe, held)
        load_weights(model, file)
        known = [row for row in rows() if (row["training"], row["epoch"]) == (given.training, epoch)]

        while step := next_attack(known, len(held), given.block):
            name, indices = step
            settings = REFERENCE if name == "reference" else PARTS[name][0]
            row = {"training": given.training, "epoch": epoch}
            row |= attacked(name, settings, model, held, indices, recipe.threat)
            known.append(row)
            with ROWS.open("a") as file_of_rows:
                file_of_rows.write(json.dumps(row) + "\n")
            print(given.training, epoch, name, broken(row), "of", len(indices), row["seconds"], flush=True)


def next_attack(known: list[Row], images: int, block: int) -> tuple[str, list[int]] | None:
    """What is still to be measured of an epoch, and on which images: PARTS, then the reference, a block at a time."""
    for name in PARTS:
        if name not in {row["attack"] for row in known}:
            return name, list(range(images))
    indices = hardest(known, block)
    return ("reference", indices) if indices else None


def broken(row: Row) -> int:
    return sum(one > 0 for one in row["margins"])


def hardest(known: list[Row], block: int) -> list[int]:
    """The next images for the reference; none after a block of which it broke one or none, or if none are left."""
    done = [row for row in known if row["attack"] == "reference"]
    highest = worst(known)
    highest[[k for row in done for k in row["indices"]]] = float("inf")
    left = [k for k in highest.argsort(descending=True).tolist() if highest[k] <= 0]
    return [] if done and broken(done[-1]) <= 1 else left[:block]


def worst(found: list[Row]) -> Tensor:
    """The largest margin of each image over the attacks; those that an attack left out have the others'."""
    highest = torch.full((max(map(len, (row["indices"] for row in found))),), float("-inf"))
    for row in found:
        index = torch.tensor(row["indices"])
        highest[index] = torch.maximum(highest[index], torch.tensor(row["margins"]))
    return highest


def evaluated(monitor: tuple[str, ...], found: list[Row]) -> tuple[float, float]:
    """Robust accuracy under the attacks in sequence, and the passes per image; the first one's are measured."""
    by_name = {row["attack"]: row for row in found}
    first, count = by_name[monitor[0]], len(by_name[monitor[0]]["indices"])
    passes = float(first["forward"] + first["backward"])
    for k, name in enumerate(monitor[1:], 1):
        passes += PARTS[name][1] * int((worst([by_name[one] for one in monitor[:k]]) <= 0).sum())
    robust = (worst([by_name[name] for name in monitor]) <= 0).float().mean()
    return 100 * float(robust), passes / count


def table() -> None:
    """Per training and monitor: cost, rank correlation with the reference, regret and overestimate, in points."""
    everything = rows()
    for training in dict.fromkeys(row["training"] for row in everything):
        ours = [row for row in everything if row["training"] == training]
        epochs = sorted({row["epoch"] for row in ours if row["attack"] == "reference"})
        by_epoch = [[row for row in ours if row["epoch"] == epoch] for epoch in epochs]
        reference = [100 * float((worst(found) <= 0).float().mean()) for found in by_epoch]
        print(f"\n{training}, the reference after each epoch: {', '.join(f'{one:.1f}' for one in reference)}\n")
        print("| monitor | passes | of PGD-20 | Spearman | Kendall | epoch | regret | overestimate |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        usual = fmean(evaluated(("PGD-20",), found)[1] for found in by_epoch)
        measured = set.intersection(*({row["attack"] for row in found} for found in by_epoch))
        for monitor in (one for one in MONITORS if measured.issuperset(one)):
            accuracy, passes = zip(*(evaluated(monitor, found) for found in by_epoch), strict=True)
            best = max(range(len(epochs)), key=lambda k: (accuracy[k], k))  # of equals the later, as in a training
            over = [ours - theirs for ours, theirs in zip(accuracy, reference, strict=True)]
            figures = [
                f"{fmean(passes):.0f}",
                f"{fmean(passes) / usual:.1f}",
                f"{spearmanr(accuracy, reference).statistic:.2f}",
                f"{kendalltau(accuracy, reference).statistic:.2f}",
                f"{epochs[best]}",
                f"{max(reference) - reference[best]:.1f}",
                f"{fmean(over):.1f}",
            ]
            print(f"| {' + '.join(monitor)} | {' | '.join(figures)} |")


def add_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("training", choices=TRAININGS)
    one.add_argument("--data-dir", type=Path)
    one.add_argument("--runs", type=Path, default=Path("runs"))
    one.add_argument("--images", type=int, default=150)
    one.add_argument("--block", type=int, default=25)


if __name__ == "__main__":
    run(__doc__, add_arguments, measure, table)
