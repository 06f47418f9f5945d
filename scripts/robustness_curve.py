"""Draw accuracy against eps of the demo's two networks, from rows in results/: python scripts/robustness_curve.py

The rows: atent attack runs/demo --set steps=20 --threat linf:0 --threat linf:0.05 ... --threat linf:0.4, and likewise
runs/demo-plain. Needs matplotlib (the extra `report`).
"""

from pathlib import Path
from typing import NamedTuple

from atent.report.tables import results
from atent.storage.rows import Rate
from atent.threat import Threat

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "robustness.svg"
ATTACK = "PGD-20"
TRAINED_AT = 0.3


class Curve(NamedTuple):
    """A network of results/, and the style of its line, which differs not only in colour."""

    network: str
    title: str
    color: str
    marker: str
    line: str
    name_at: tuple[float, float]


CURVES = (
    Curve("demo", "adversarial training", "#0b3c8c", "o", "-", (0.18, 98)),
    Curve("demo-plain", "plain training", "#b85c12", "s", "--", (0.165, 57)),
)


def points(network: str) -> list[tuple[float, Rate]]:
    """The robust accuracy at each linf radius, the smallest first."""
    lines = [line for line in results(ROOT / "results" / network) if line.attack == ATTACK]
    return sorted((Threat.parse(line.threat).eps, line.robust) for line in lines)


def table() -> str:
    """The points of all curves, in percent."""
    head = "| linf radius | " + " | ".join(f"{curve.network} %" for curve in CURVES) + " |"
    rows = zip(*(points(curve.network) for curve in CURVES), strict=True)
    body = [f"| {row[0][0]:g} | " + " | ".join(str(robust) for _, robust in row) + " |" for row in rows]
    return "\n".join([head, "|---:|" + "---:|" * len(CURVES), *body])


def description() -> str:
    """What the picture shows, in words; it is kept in the picture."""
    lines = (
        f"{curve.title}: " + ", ".join(f"{100 * robust.value:.2f} at {eps:g}" for eps, robust in points(curve.network))
        for curve in CURVES
    )
    return f"Accuracy in percent under {ATTACK} at a linf radius. {'; '.join(lines)}."


def draw(path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "atent", "font.size": 11})  # the same file from the same rows
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for curve in CURVES:
        eps, rates = zip(*points(curve.network), strict=True)
        value, low, high = ([100 * share for share in shares] for shares in zip(*rates, strict=True))
        axes.fill_between(eps, low, high, color=curve.color, alpha=0.2, lw=0)
        axes.plot(eps, value, curve.line, color=curve.color, marker=curve.marker, lw=2)
        axes.text(*curve.name_at, curve.title, color=curve.color, weight="bold", va="center")
    axes.axvline(TRAINED_AT, color="0.5", lw=1, ls=":")
    axes.text(TRAINED_AT + 0.004, 4, f"trained at {TRAINED_AT:g}", color="0.35")
    axes.set(xlabel="size of the attack (linf radius eps)", ylabel="still classified correctly (%)")
    axes.set(xlim=(-0.005, 0.405), ylim=(-2, 103), xticks=[k / 20 for k in range(9)])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")
    figure.savefig(path, metadata={"Date": None, "Title": "Accuracy against eps", "Description": description()})


if __name__ == "__main__":
    draw(PICTURE)
