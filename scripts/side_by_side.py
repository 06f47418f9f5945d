"""Eight ways to train one network, MNIST at linf .3, ten minutes of a two-core machine each.

python scripts/side_by_side.py --data-dir DATA [--only trades mart]

One schedule for all; the learning rate of each is the best of three by trials of two minutes, judged on held-out
images (PGD-20 on 1,000). The networks chosen are then attacked by PGD-40 on the whole test set, rows and all, as
`atent attack` does. Stopped and started again, it goes on; processes with different names can share the work.
"""

import argparse
from pathlib import Path
from typing import Any

from equal_budget import judged, recipe_for, time_of

from atent.attacks import make_attack
from atent.evaluate import attack_target
from atent.machine import prepare
from atent.state import score
from atent.target import open_target
from atent.threat import Threat
from atent.train import fit

TRIAL, FULL = 2, 10
SGD: list[dict[str, Any]] = [{"optimizer.lr": lr} for lr in (0.02, 0.05, 0.1)]
# Entropy-SGD's own rate is near 1 by construction; what corresponds to a learning rate is its inner step.
ENTROPY: list[dict[str, Any]] = [{"optimizer.name": "entropy-sgd", "optimizer.step": step} for step in (0.05, 0.1, 0.2)]
JUDGE = {"monitor_examples": 500, "monitor.steps": 20}  # of the epochs of the fast ones, which have many
METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"defense.name": "standard"},
    "entropy-sgd": {"defense.name": "standard"},
    "fast": {"defense.name": "fast"},
    "pgd-at": {"defense.name": "pgd-at", "defense.steps": 10},
    "trades": {"defense.name": "trades", "defense.steps": 10},
    "mart": {"defense.name": "mart", "defense.steps": 10},
    "mma": {"defense.name": "mma", "defense.steps": 10},
    "atent": {"defense.name": "atent", "defense.steps": 10},
}


def best_rate(name: str, out: Path, data_dir: Path) -> dict[str, Any]:
    """The setting whose trial was the best on held-out images: the most robust, of plain training the cleanest."""
    scores: list[tuple[tuple[float, float], dict[str, Any]]] = []
    for k, rate in enumerate(ENTROPY if name == "entropy-sgd" else SGD):
        recipe = recipe_for(TRIAL, METHODS[name] | rate | JUDGE, 0, time_of)
        row = judged(recipe, out / f"{name}-trial-{k}", data_dir, 1000, 20)
        scores.append((score(row, recipe.chosen_by), rate))
        print(f"{name} {rate}: clean {100 * row['clean']:.2f}, PGD-20 {100 * row['robust']:.2f}", flush=True)
    return max(scores, key=lambda item: item[0])[1]


def compare(name: str, out: Path, data_dir: Path) -> None:
    rate = best_rate(name, out, data_dir)
    fit(recipe_for(FULL, METHODS[name] | rate | JUDGE, 0, time_of), out / name, data_dir=data_dir)
    target = open_target(out / name, data_dir=data_dir)
    settings = {"name": "pgd", "steps": 40}
    attack_target(target, make_attack(settings), settings, Threat.parse(str(target.threat)), out / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/side-by-side"))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prepare(given.threads)
    for name in given.only:
        compare(name, given.out, given.data_dir)
