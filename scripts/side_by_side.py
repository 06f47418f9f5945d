"""Nine training methods for one network, MNIST at linf .3, ten minutes of a two-core machine each.

python scripts/side_by_side.py --data-dir DATA [--only trades mart]
python scripts/side_by_side.py --data-dir DATA --only pgd-at mart --lr 0.05           with a given learning rate
python scripts/side_by_side.py --data-dir DATA --collect results/side-by-side        when all are done

`atent` is the defense with its defaults. `pgd-noise` is PGD training with a little noise, its defaults before.

All methods use the same schedule. The learning rate of each is the best of three in trials of two minutes, evaluated on
1,000 held-out images with PGD-20. If the ten-minute training then gets stuck at a constant prediction, which a trial of
two minutes may not show, it is repeated with the next best rate. The networks are attacked by PGD-40 on the whole test
set and by AutoAttack (the extra `attacks`) on the first 200 images, with rows as `atent attack` writes them. Run the
same command to resume; processes with different names can share the work.
"""

import argparse
import textwrap
from pathlib import Path
from typing import Any

from collect import collect as collect_run
from equal_budget import EVALUATION, evaluated, images_of, passes_of, recipe_for, time_of

from atent.attacks import make_attack
from atent.attacks.protocols import title_of
from atent.evaluation.attack import attack_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import open_target
from atent.machine import prepare
from atent.recipe import recipe_of
from atent.report.tables import Result, finished, mark, note, results
from atent.storage.files import read_json, read_rows, write_rows
from atent.storage.rows import robust_rate
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.state import score

TRIAL, FULL = 2, 10
PGD = {"name": "pgd", "steps": 40}
AUTOATTACK, FIRST = {"name": "autoattack"}, 200
SGD: list[dict[str, Any]] = [{"optimizer.lr": lr} for lr in (0.02, 0.05, 0.1)]
# Entropy-SGD's outer rate is near 1 by construction; its inner step corresponds to a learning rate.
ENTROPY: list[dict[str, Any]] = [{"optimizer.name": "entropy-sgd", "optimizer.step": step} for step in (0.05, 0.1, 0.2)]
MONITOR = {"monitor_examples": 500, "monitor.steps": 20}  # evaluation after each epoch; fast methods have many epochs
METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"defense.name": "standard"},
    "entropy-sgd": {"defense.name": "standard"},
    "fast": {"defense.name": "fast"},
    "pgd-at": {"defense.name": "pgd-at", "defense.steps": 10},
    "trades": {"defense.name": "trades", "defense.steps": 10},
    "mart": {"defense.name": "mart", "defense.steps": 10},
    "mma": {"defense.name": "mma", "defense.steps": 10},
    "pgd-noise": {"defense.name": "atent", "defense.steps": 10, "defense.noise": 1e-3},
    "atent": {"defense.name": "atent"},
}


def ranked(name: str, out: Path, data_dir: Path) -> list[dict[str, Any]]:
    """The settings, ordered by held-out accuracy in their trials, best first: robust, for standard training clean."""
    scores: list[tuple[tuple[float, float], dict[str, Any]]] = []
    for k, rate in enumerate(ENTROPY if name == "entropy-sgd" else SGD):
        recipe = recipe_for(TRIAL, METHODS[name] | rate | MONITOR, 0, time_of)
        row = evaluated(recipe, out / f"{name}-trial-{k}", data_dir, 1000, 20)
        scores.append((score(row, recipe.chosen_by), rate))
        print(f"{name} {rate}: clean {100 * row['clean']:.2f}, PGD-20 {100 * row['robust']:.2f}", flush=True)
    return [rate for _, rate in sorted(scores, key=lambda item: item[0], reverse=True)]


def stuck(folder: Path) -> bool:
    """Whether the network was close to a constant prediction after the last epoch of a training."""
    history = Run(folder).history()
    return bool(history) and history[-1]["clean"] < 0.2


def compare(name: str, out: Path, data_dir: Path) -> None:
    """Train with the best settings of the trials that do not get stuck, and attack."""
    for k, rate in enumerate(ranked(name, out, data_dir)):
        folder = out / f"{name}-{k}"
        train(name, rate, folder, data_dir)
        if not stuck(folder):
            break
    attack(folder, data_dir)


def train(name: str, rate: dict[str, Any], folder: Path, data_dir: Path) -> None:
    if not stuck(folder):
        fit(recipe_for(FULL, METHODS[name] | rate | MONITOR, 0, time_of), folder, data_dir=data_dir)


def attack(folder: Path, data_dir: Path) -> None:
    for settings, examples, batch in ((PGD, None, 250), (AUTOATTACK, FIRST, 50)):
        target = open_target(folder, data_dir=data_dir, examples=examples)
        planned = Planned.of(make_attack(settings), settings, Threat.parse(str(target.threat)))
        attack_target(target, planned, folder, batch=batch)


def collect(out: Path, kept: Path) -> None:
    """Copy the sources of the table: recipes, logs and rows of all trainings, also stuck ones; one row per trial.

    What is there already and not in `out` stays.
    """
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / "trials.jsonl"
    trials = {str(row["trial"]): dict(row) for row in read_rows(file)} if file.exists() else {}
    for trial in out.glob(f"*-trial-*/{EVALUATION}"):
        trials[trial.parent.name] = {"trial": trial.parent.name, **read_json(trial)}
    write_rows(file, [trials[name] for name in sorted(trials)])
    for name in METHODS:
        for run in [*out.glob(f"{name}-?"), *out.glob(f"{name}-lr-*")]:
            if stuck(run) or (run / "attack").exists():
                chosen = not stuck(run) and "-lr-" not in run.name
                collect_run(run, kept, name if chosen else None)


def pgd_result(folder: Path) -> Result | None:
    """The result under PGD-40 on all test images; None if it is not there."""
    label = title_of(make_attack(PGD))
    return next((line for line in results(folder) if line.attack == label), None)


def autoattack_accuracy(folder: Path) -> str:
    """Robust accuracy under AutoAttack on the first images; empty if fewer were attacked."""
    attacks = [attack for met in finished(folder) for attack in met.attacks if attack.header["label"] == "AutoAttack"]
    enough = (of for of in attacks if len(of.rows) >= FIRST)
    return next((f"{robust_rate(of.rows[:FIRST])}{mark(of.verified)}" for of in enough), "")


def table(kept: Path, published: Path) -> str:
    """The accuracies of each training, the most robust first, and of a published network under the same attacks."""
    lines = [(line, folder) for folder in [*kept.glob("*"), published] if (line := pgd_result(folder))]
    body = [
        f"| {line.run} | {how(folder)} | {100 * line.clean.value:.2f} | {line.robust}{mark(line.verified)} | "
        f"{autoattack_accuracy(folder)} |"
        for line, folder in sorted(lines, key=lambda item: -item[0].robust.value)
    ]
    how_trained = "| training | learning rate | passes per image | images seen |"
    columns = f"{how_trained} clean % | PGD-40 % | AutoAttack %, first {FIRST} |"
    verified = not any(" *" in row for row in body)
    return "\n".join([columns, "|---|---|---:|---:|---:|---:|---:|", *body, *note(verified)])


def sentence(folder: Path) -> str:
    """The accuracies of a training for the page of its method, also at learning rates that were not chosen."""
    if not pgd_result(folder):
        return "Not trained side by side with the others yet."
    other_rates = sorted(folder.parent.glob(f"{folder.name}-lr-*"))
    others = [
        f" At a rate of {rate_of(other)} instead of {rate_of(folder)}: {accuracies(other)}." for other in other_rates
    ]
    shown = f"Ten minutes of two cores, MNIST, linf .3: {accuracies(folder)}.{''.join(others)}"
    return textwrap.fill(f"{shown} All nine [side by side](results.md#side-by-side).", 118, break_on_hyphens=False)


def accuracies(folder: Path) -> str:
    line = pgd_result(folder)
    return f"clean {100 * line.clean.value:.2f}, PGD-40 {line.robust}" if line else "not attacked yet"


def rate_of(folder: Path) -> str:
    """The learning rate of a training; for Entropy-SGD its inner step."""
    optimizer = recipe_of(Run(folder)).optimizer
    return f"step {optimizer['step']:g}" if optimizer["name"] == "entropy-sgd" else f"{optimizer['lr']:g}"


def how(folder: Path) -> str:
    """Learning rate, passes and images of a training; empty for a published network."""
    if not Run(folder).recipe_file.exists():
        return " | | "
    recipe = recipe_of(Run(folder))
    return f"{rate_of(folder)} | {passes_of(recipe):g} | {images_of(recipe):,}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/side-by-side"))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--lr",
        type=float,
        help="train with this learning rate, without trials, in addition to the one chosen by trials",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--collect", type=Path, help="copy the sources of the table to this folder, and train nothing")
    given = parser.parse_args()
    if given.collect:
        collect(given.out, given.collect)
    else:
        prepare(given.threads)
        for name in given.only:
            if given.lr:
                folder = given.out / f"{name}-lr-{given.lr:g}"
                train(name, {"optimizer.lr": given.lr}, folder, given.data_dir)
                attack(folder, given.data_dir)
            else:
                compare(name, given.out, given.data_dir)
