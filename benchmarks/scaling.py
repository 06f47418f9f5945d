"""Time and peak memory of a training step as the steps K of the search, the batch and the width of the network grow.

    python benchmarks/scaling.py [--threads N] [--seconds S]      about four minutes on an idle core

Every line is a probe of `atent plan`: a real training of some batches in a process of its own. Memory must be flat in K
and over epochs; time must be linear in K, in the batch, and in the operations that the width gives. It prints Markdown.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from atent.models.wide_resnet import WideResNet
from atent.network import Shape
from atent.planning.plan import needs_of
from atent.planning.probe import Probe, request, run_probe
from atent.planning.sizes import find_sizes
from atent.recipe import Recipe, load_recipe
from atent.training.fit import fit
from atent.training.options import TrainingOptions

BASE = {"defense.steps": 10, "batch": 64, "monitor_examples": 50, "averaging": 0}
STEPS, BATCHES, WIDTHS = (5, 10, 20, 40), (32, 64, 128, 256), (1, 2, 4)
EPOCHS = 8


def width(widen: int, shape: Shape) -> WideResNet:
    return WideResNet(shape, depth=10, widen=widen)


width1, width2, width4 = (partial(width, widen) for widen in WIDTHS)


def lines() -> list[tuple[str, int, Mapping[str, Any]]]:
    """What grows, its value, and the changes of the recipe."""
    return [
        *(("steps K", steps, {"defense.steps": steps}) for steps in STEPS),
        *(("batch", batch, {"batch": batch}) for batch in BATCHES),
        *(("width", widen, {"model": f"scaling:width{widen}", "batch": 32, "defense.steps": 2}) for widen in WIDTHS),
    ]


def probed(recipe: Recipe, threads: int, seconds: float) -> tuple[Probe, float]:
    """The probe, and the operations of a batch."""
    sizes = find_sizes(recipe, None, None, None, None)
    needs = needs_of(recipe, sizes)
    asked = request(recipe, sizes, threads=threads, batch=recipe.batch, seconds=seconds)
    return run_probe(asked), needs.epoch / sizes.trained(recipe) * recipe.batch


def resident() -> float:
    """Megabytes of this process in memory now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def over_epochs() -> list[float]:
    """Memory after each epoch of a short training."""
    found: list[float] = []
    changes = {**BASE, "epochs": EPOCHS, "validation": 5700, "defense.steps": 2, "monitor.steps": 2}
    with tempfile.TemporaryDirectory() as folder:
        ends = re.compile(r"epoch \d+/")  # other lines warn
        how = TrainingOptions(say=lambda line: found.append(resident()) if ends.match(line) else None)
        fit(load_recipe("demo", changes), folder, how=how)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of timed batches per line")
    given = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    print("| | | ms per batch | x first | operations x first | peak MB |\n|---|---:|---:|---:|---:|---:|")
    first: dict[str, tuple[float, float]] = {}
    for name, value, changes in lines():
        probe, operations = probed(load_recipe("demo", {**BASE, **changes}), given.threads, given.seconds)
        seconds, before = first.setdefault(name, (probe.seconds, operations))
        ratios = f"{probe.seconds / seconds:.2f} | {operations / before:.2f}"
        print(f"| {name} | {value} | {1000 * probe.seconds:.0f} | {ratios} | {probe.peak / 2**20:.0f} |", flush=True)
    memory = over_epochs()
    print(f"\nMB after epochs 1 to {len(memory)}: " + ", ".join(f"{one:.0f}" for one in memory))


if __name__ == "__main__":
    main()
