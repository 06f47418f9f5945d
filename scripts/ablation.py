"""What ATENT's entropy adds: ATENT with one factor changed at a time, and PGD training, with equal passes.

python scripts/ablation.py --data-dir DATA                      trains what is missing
python scripts/ablation.py --data-dir DATA --seeds 1 --variants pgd-at noise-0.1

The variant `atent`, from which the others differ by one factor, is not the paper's setting (40 steps of .01, gaussian
start, train mode). The samples before its last step lie outside the ball and make up half of its loss
(`along_the_chain.py`).

Prints the table of all trainings evaluated so far and writes its rows to `ablation.jsonl` in the folder of the runs.

Each training costs five minutes of a two-core machine (`equal_budget.py`). It is evaluated by PGD-40 on 2,000 held-out
images, the same for all variants of a seed. Run the same command to resume; two processes with different seeds can
share the work.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from equal_budget import EVALUATION, evaluated, passes_of, recipe_for

from atent.machine import prepare
from atent.storage.files import read_json, write_rows

MINUTES = 5
SEEDS = 3
ATENT: dict[str, Any] = {
    "defense.name": "atent",
    "defense.steps": 10,
    "defense.reach": 2.0,
    "defense.noise": 1e-3,
    "defense.pull": 0.0,
    "defense.share": 0.9,
    "defense.start": "uniform",
    "defense.direction": "steepest",
    "defense.project": "last",
    "defense.mode": "eval",
    "optimizer.lr": 0.05,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "pgd-at": {"defense.name": "pgd-at", "defense.steps": 10, "defense.reach": 2.0, "optimizer.lr": 0.05},
    "atent": ATENT,
    "noise-0.1": ATENT | {"defense.noise": 0.1},
    "share-1": ATENT | {"defense.share": 1.0},
    "pull-auto": ATENT | {"defense.pull": "auto"},
    # The raw gradient is about a thousandth of its sign: with steps fifty times as large, the mean chain from x just
    # reaches the radius (on the demo's network).
    "raw": ATENT | {"defense.direction": "raw", "defense.reach": 100.0},
    "project-every": ATENT | {"defense.project": "every"},
    "project-never": ATENT | {"defense.project": "never"},
    "start-corner": ATENT | {"defense.start": "corner"},
    "mode-train": ATENT | {"defense.mode": "train"},
    # The two changes with the smallest loss compared with PGD training, together; the defaults have both.
    "chosen": ATENT | {"defense.share": 1.0, "defense.project": "every"},
}


def finished(out: Path) -> list[dict[str, Any]]:
    """A row for every training evaluated so far."""
    folders = [(variant, seed, out / f"{variant}-{seed}") for variant in VARIANTS for seed in range(SEEDS)]
    found = [
        (variant, seed, folder / EVALUATION) for variant, seed, folder in folders if (folder / EVALUATION).exists()
    ]
    return [{"variant": variant, "seed": seed, **read_json(file)} for variant, seed, file in found]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over the seeds of each variant, the largest gain over PGD training first.

    The gain is computed per seed and then averaged: the trainings of a seed start from the same weights and are
    evaluated on the same images.
    """
    rival = {row["seed"]: row["robust"] for row in rows if row["variant"] == "pgd-at"}
    variants: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        variants.setdefault(row["variant"], []).append(row)
    lines = [
        "| variant | passes | images | seeds | clean % | PGD-40 % | over `pgd-at` | radius |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    gained = {
        variant: [row["robust"] - rival[row["seed"]] for row in of if row["seed"] in rival]
        for variant, of in variants.items()
    }
    for variant, gains in sorted(gained.items(), key=lambda item: -statistics.mean(item[1] or [-1.0])):
        of = variants[variant]
        cells = [
            f"`{variant}`",
            f"{of[0]['passes']:g}",
            f"{of[0]['images']:,}",
            str(len(of)),
            spread([row["clean"] for row in of]),
            spread([row["robust"] for row in of]),
            "" if variant == "pgd-at" or not gains else spread(gains, sign="+"),
            f"{statistics.mean(row['radius'] for row in of):.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(shares: list[float], sign: str = "") -> str:
    """Mean and standard deviation in percent; a single value has no deviation."""
    mean = f"{100 * statistics.mean(shares):{sign}.2f}"
    return f"{mean} +- {100 * statistics.stdev(shares):.2f}" if len(shares) > 1 else mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--seeds", type=int, nargs="+", choices=range(SEEDS), default=list(range(SEEDS)))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prepare(given.threads)
    for seed in given.seeds:
        for variant in given.variants:
            evaluated(
                recipe_for(MINUTES, VARIANTS[variant], seed, passes_of), given.out / f"{variant}-{seed}", given.data_dir
            )
    rows = finished(given.out)
    write_rows(given.out / "ablation.jsonl", rows)
    print(table(rows))
