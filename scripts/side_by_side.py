"""Eight ways to train one network, MNIST at linf .3, ten minutes of a two-core machine each.

python scripts/side_by_side.py --data-dir DATA [--only trades mart]
python scripts/side_by_side.py --data-dir DATA --collect results/side-by-side        when all are done

One schedule for all; the learning rate of each is the best of three by trials of two minutes, judged on held-out
images (PGD-20 on 1,000). The networks chosen are then attacked by PGD-40 on the whole test set, rows and all, as
`atent attack` does. Stopped and started again, it goes on; processes with different names can share the work.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from equal_budget import JUDGED, images_of, judged, passes_of, recipe_for, time_of

from atent.attacks import make_attack
from atent.evaluate import attack_target
from atent.machine import prepare
from atent.recipe import Recipe
from atent.report import results
from atent.runs import read_json, write_rows
from atent.state import score
from atent.target import open_target
from atent.threat import Threat
from atent.train import fit

TRIAL, FULL = 2, 10
ATTACK = {"name": "pgd", "steps": 40}
KEPT = ("recipe.json", "environment.json", "train.jsonl")  # of a training, beside the rows of its attack
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
    attack_target(target, make_attack(ATTACK), ATTACK, Threat.parse(str(target.threat)), out / name)


def collect(out: Path, kept: Path) -> None:
    """Keep what the table is made of: recipes, logs and rows of the trainings, and a row for each trial."""
    kept.mkdir(parents=True, exist_ok=True)
    trials = sorted(out.glob(f"*-trial-*/{JUDGED}"))
    write_rows(kept / "trials.jsonl", [{"trial": trial.parent.name, **read_json(trial)} for trial in trials])
    for name in METHODS:
        if (out / name / "attack").exists():
            shutil.copytree(out / name / "attack", kept / name / "attack", dirs_exist_ok=True)
            for file in KEPT:
                shutil.copyfile(out / name / file, kept / name / file)


def table(kept: Path, published: Path) -> str:
    """What each training reached, the most robust first, and a published network under the same attack."""
    label = make_attack(ATTACK).label
    lines = [(line, folder) for folder in [*kept.iterdir(), published] for line in results(folder)]
    lines = [(line, folder) for line, folder in lines if line.attack == label]
    columns = "| training | rate | passes an image | images seen | clean % | PGD-40 % |"
    body = [
        f"| {line.run} | {how(folder)} | {100 * line.clean.value:.2f} | {line.robust} |"
        for line, folder in sorted(lines, key=lambda item: -item[0].robust.value)
    ]
    return "\n".join([columns, "|---|---|---:|---:|---:|---:|", *body])


def how(folder: Path) -> str:
    """Rate, passes and images of a training; nothing is known of a published network's."""
    file = folder / "recipe.json"
    if not file.exists():
        return " | | "
    recipe = Recipe.model_validate_json(file.read_bytes())
    entropy = recipe.optimizer["name"] == "entropy-sgd"
    rate = f"step {recipe.optimizer['step']:g}" if entropy else f"{recipe.optimizer['lr']:g}"
    return f"{rate} | {passes_of(recipe):g} | {images_of(recipe):,}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/side-by-side"))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--collect", type=Path, help="copy what the table is made of here, and train nothing")
    given = parser.parse_args()
    if given.collect:
        collect(given.out, given.collect)
    else:
        prepare(given.threads)
        for name in given.only:
            compare(name, given.out, given.data_dir)
