"""A plan against a real training: the time of N batches and the peak memory, with one evaluation, as ratios.

    python benchmarks/plan.py [RECIPE ...] [--batches N] [--threads N] [--data-dir DIR] [--weights RUN]

Each training runs in a process of its own, as the plan's probe does. A network that has learned nothing is hardly
attacked in the evaluation: most images are misclassified at once. `--weights` starts from a trained network instead.
Without recipes, those of two data sets, with few steps of the search on CIFAR-10: about five minutes of an idle core.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from atent.data.images import epoch_batches
from atent.machine import prepare
from atent.planning.plan import needs_of, probe_request
from atent.planning.probe import peak_memory, run_probe
from atent.planning.sizes import find_sizes
from atent.recipe import load_recipe
from atent.training import fit as training
from atent.training.options import TrainingOptions

RECIPES: dict[str, dict[str, Any]] = {"mnist-linf-pgd-quick": {}, "cifar10-l2-atent-paper": {"defense.steps": 2}}
GOALS = "goals: time of the batches .85 to 1.15, memory .9 to 1.1"


def train(name: str, changes: dict[str, Any], batches: int, threads: int, data_dir: str | None) -> None:
    """An epoch of so many batches in this process; prints its times and its peak memory as JSON."""
    prepare(threads)
    marks: list[float] = []

    def clock() -> float:
        marks.append(time.monotonic())
        return marks[-1]

    training.epoch_batches = lambda *given: epoch_batches(*given)[:batches]  # type: ignore[attr-defined]
    how = TrainingOptions("cpu", say=lambda _: None, clock=clock)
    with tempfile.TemporaryDirectory() as folder:
        training.fit(load_recipe(name, {**changes, "epochs": 1}), folder, data_dir=data_dir, how=how)
    *laps, evaluation = [after - before for before, after in pairwise(marks[1:])]
    print(json.dumps({"batches": sum(laps), "evaluation": evaluation, "peak": peak_memory()}))


def compare(name: str, batches: int, threads: int, data_dir: str | None, weights: str | None) -> None:
    """Plan, then train, and print the ratios."""
    changes = RECIPES.get(name, {}) | ({"weights": weights} if weights else {})
    recipe = load_recipe(name, changes)
    sizes = find_sizes(recipe, Path(data_dir) if data_dir else None, None, None, None)
    needs = needs_of(recipe, sizes)
    probe = run_probe(probe_request(needs, recipe, Path(data_dir) if data_dir else None, "cpu", threads))
    job = json.dumps([name, changes, batches, threads, data_dir])
    done = subprocess.run([sys.executable, __file__, "--child", job], check=True, capture_output=True, text=True)
    real = json.loads(done.stdout.splitlines()[-1])
    planned = {
        "batches": batches * probe.seconds,
        "evaluation": needs.evaluation.work * probe.pass_seconds,
        "peak": probe.peak,
    }
    print(f"{name} {changes or ''}, batch {recipe.batch}, {batches} batches, {threads} threads; planned / real")
    for key, unit, scale in (("batches", "s", 1.0), ("evaluation", "s", 1.0), ("peak", "MB", 1e6)):
        ratio = planned[key] / real[key]
        note = " (at most: every image withstands)" if key == "evaluation" else ""
        print(
            f"  {key:10} {planned[key] / scale:7.1f} / {real[key] / scale:7.1f} {unit:2} = {ratio:.2f}{note}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-dir")
    parser.add_argument("--weights", help="run folder of a trained network, to start from")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        train(*json.loads(given.child))
        return
    print(GOALS)
    for name in given.recipes:
        compare(name, given.batches, given.threads, given.data_dir, given.weights)


if __name__ == "__main__":
    main()
