"""Draw robust accuracy against minutes of training, a line for each method: python scripts/entropy_picture.py

The rows are those of `entropy.py` in results/. Needs matplotlib (the extra `report`).
"""

from pathlib import Path
from typing import NamedTuple

from entropy_table import Arm, collected

from atent.reproduce.style import BLUE, DARK, ORANGE, drawing
from atent.storage.files import read_rows

ROOT = Path(__file__).parents[1]
ROWS, PICTURE = ROOT / "results" / "entropy.jsonl", ROOT / "docs" / "entropy"
MEASURE = "strong"


class Line(NamedTuple):
    """An arm, and the style of its line, which differs not only in colour."""

    arm: str
    title: str
    color: str
    style: str


LINES = (
    Line("d5+b32", "5 shrinking steps, batch 32", BLUE, "o-"),
    Line("d5", "5 shrinking steps", BLUE, "s--"),
    Line("d3+b32", "3 shrinking steps, batch 32", ORANGE, "^-"),
    Line("d3", "3 shrinking steps", ORANGE, "v--"),
    Line("k10+b32", "10 equal steps, batch 32", DARK, "x-"),
    Line("k10", "10 equal steps (PGD training)", DARK, "D--"),
)


def points(arm: str) -> list[tuple[float, Arm]]:
    """The networks of an arm for each budget in minutes, the shortest first.

    Of several learning rates that with most seeds, then the better one.
    """
    rows = [row for row in read_rows(ROWS) if row["arm"] == arm and row["data"] == "mnist" and row["right"]]
    found = []
    for minutes in sorted({row["minutes"] for row in rows}):
        rivals = collected(row for row in rows if row["minutes"] == minutes)
        found.append((minutes, max(rivals, key=lambda one: (len(one.seeds), one.accuracy(MEASURE)))))
    return found


def described() -> str:
    """What the picture shows, in words; it is kept in the picture."""
    lines = (
        f"{line.title}: " + ", ".join(f"{100 * arm.accuracy(MEASURE):.1f} after {at:g}" for at, arm in found) + "."
        for line in LINES
        if (found := points(line.arm))
    )
    about = f"Accuracy in percent under {MEASURE} on held-out MNIST images, linf .3, by nominal minutes of one core."
    return " ".join([about, *lines])


def draw(path: Path) -> None:
    known = {line: found for line in LINES if (found := points(line.arm))}
    with drawing(path, 1, 1, (8, 3.6)) as (_, ((axes,),), words):
        words.append(described())
        for k, (line, found) in enumerate(known.items()):
            places = [at * 1.02 ** (k - len(known) / 2) for at, _ in found]  # so that no point hides another
            heights = [100 * arm.accuracy(MEASURE) for _, arm in found]
            errors = [100 * arm.uncertainty(MEASURE) for _, arm in found]
            axes.errorbar(places, heights, errors, fmt=line.style, color=line.color, capsize=3, label=line.title)
        axes.set_xscale("log")
        axes.set(xlabel="training, nominal minutes of one core", ylabel=f"correct under {MEASURE} (%)")
        ticks = sorted({minutes for found in known.values() for minutes, _ in found})
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", color="0.9")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


if __name__ == "__main__":
    draw(PICTURE)
