"""Does weight averaging harm networks with BatchNorm? Held-out accuracy per epoch, with and without averaging.

python scripts/averaging.py --data-dir DATA        trains what is missing

Standard training of a three-layer convolutional network on `mnist-small`, for ten epochs and for 45, and of `resnet-20`
on 2,000 images of CIFAR-10.
Prints the table and writes one line per training to `averaging.jsonl` in the folder of the runs.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

from atent.data.dataset import open_data
from atent.machine import prepare
from atent.models import Shape
from atent.recipe import Recipe, load_recipe
from atent.storage.files import read_rows, write_rows
from atent.training.fit import fit

DECAYS = (0.0, 0.99, 0.997)
FIRST = 3  # epochs before it are not compared
PLAIN: dict[str, Any] = {"defense.name": "standard", "epochs": 10, "monitor.name": "fgsm", "monitor_examples": 1000}


def three_layers(shape: Shape) -> nn.Module:
    """Three convolutions, each with BatchNorm, and a linear layer."""
    widths = (shape.image[0], 16, 32, 64)
    layers = [
        layer
        for before, after in pairwise(widths)
        for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], shape.classes))


def cifar_part(out: Path, data_dir: Path | None) -> str:
    """3,030 training images of CIFAR-10 as a file: 2,000 to train on, 1,000 held out, 30 unused."""
    images = open_data("cifar10", data_dir).images("train")
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "cifar10-part.npz", x=images.pixels()[:3030].numpy(), y=images.y[:3030].numpy())
    return str(out / "cifar10-part.npz")


def recipes(out: Path, data_dir: Path | None) -> dict[str, Recipe]:
    """A recipe for each network and decay."""
    three = {"model": "averaging:three_layers", "validation": 1000}
    twenty = {
        "model": "resnet-20",
        "data": cifar_part(out, data_dir),
        "test_share": 0.01,
        "validation": 1000,
        "batch": 128,
        "augment": "crop-flip",
        "standardize": True,
        "threat": "linf:8/255",
    }
    long = three | {"epochs": 45}  # 3,555 updates: .99 is reached after 890, .997 after 2,990
    return {
        f"{name}-{decay:g}": load_recipe("demo", PLAIN | changes | {"averaging": decay})
        for name, changes in (("three-layers", three), ("resnet-20", twenty), ("three-layers-long", long))
        for decay in DECAYS
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Mean held-out accuracy over the compared epochs, and how far they are below those without averaging."""
    lines = ["| training | mean % | below, mean | below, worst epoch |", "|---|---:|---:|---:|"]
    plain = {row["network"]: row["clean"] for row in rows if row["decay"] == 0}
    for row in rows:
        ours, theirs = row["clean"][FIRST - 1 :], plain[row["network"]][FIRST - 1 :]
        below = [100 * (b - a) for a, b in zip(ours, theirs, strict=True)]
        name = f"{row['network']}, averaging {row['decay']:g}"
        lines.append(f"| {name} | {100 * fmean(ours):.2f} | {fmean(below):.2f} | {max(below):.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/averaging"))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prepare(given.threads)
    rows = []
    for name, recipe in recipes(given.out, given.data_dir).items():
        run = fit(recipe, given.out / name)
        clean = [row["clean"] for row in read_rows(run.log)]
        rows.append({"network": name.rpartition("-")[0], "decay": recipe.averaging, "clean": clean})
    write_rows(given.out / "averaging.jsonl", rows)
    print(table(rows))
