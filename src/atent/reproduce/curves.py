"""Figure 3: accuracies during a training, on the trained points and on held-out images, and the learning rate."""

from pathlib import Path

from atent.reproduce.engine import Place
from atent.reproduce.plan import Figure
from atent.reproduce.style import BLUE, DARK, ORANGE, new_figure, save
from atent.storage.run import Run

LINES = (
    ("clean", "held-out, clean", BLUE, "-", "o"),
    ("robust", "held-out, attacked", BLUE, "--", "s"),
    ("train_robust", "training, at the trained points", ORANGE, "-", "^"),
)


def draw(figure: Figure, place: Place, path: Path) -> None:
    """The log has no accuracy on clean training images: no training step computes it."""
    (row,) = figure.rows
    recipe = place.recipe(row.network)
    history = Run(place.trained(row.network, weights=False) or place.home / row.network).history()
    epochs = [line["epoch"] for line in history]
    drawing, grid = new_figure(2, 1, (7, 4.6), sharex=True, height_ratios=(4, 1))
    (above,), (below,) = grid
    for key, label, color, style, marker in LINES:
        values = [100 * line[key] if key in line else float("nan") for line in history]
        above.plot(epochs, values, style, color=color, marker=marker, ms=4, label=label)
    best = next((line["epoch"] for line in reversed(history) if line["best"]), None)
    if best is not None:
        above.axvline(best, color="0.6", lw=1, ls="-.", label="best epoch (held-out)")
    done = [k / 200 for k in range(201)]
    below.plot(
        [1 + (recipe.epochs - 1) * d for d in done], [recipe.schedule.rate(d, recipe.epochs) for d in done], color=DARK
    )
    drops = [epoch for epoch in recipe.schedule.milestones if recipe.schedule.name == "step" and epoch < recipe.epochs]
    for axes in (above, below):
        for drop in drops:
            axes.axvline(drop + 0.5, color=DARK, lw=1, ls=":")
    above.set(ylabel="accuracy (%)", title=f"{row.label}: {recipe.model}, {recipe.threat}")
    above.grid(axis="y", color="0.9")
    above.legend(fontsize=9)
    below.set(xlabel="epoch", ylabel="rate", ylim=(0, 1.08))
    last = history[-1] if history else {}
    facts = ", ".join(f"{label} {100 * last[key]:.2f}" for key, label, *_ in LINES if key in last)
    save(drawing, path, f"{figure.title}. After {len(history)} epochs: {facts}.")
