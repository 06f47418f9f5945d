"""Figure 3: accuracies during a training, on the trained points and on held-out images, and the learning rate."""

from pathlib import Path

from atent.optim.schedule import Schedule
from atent.reproduce.engine import Place
from atent.reproduce.plan import Figure
from atent.reproduce.style import BLUE, DARK, ORANGE, drawing
from atent.storage.run import Run

LINES = (
    ("clean", "held-out, clean", BLUE, "-", "o"),
    ("robust", "held-out, attacked", BLUE, "--", "s"),
    ("train_clean", "training, clean", ORANGE, "-", "^"),
    ("train_robust", "training, at the trained points", ORANGE, "--", "v"),
)


def draw(figure: Figure, place: Place, path: Path) -> None:
    (row,) = figure.rows
    recipe = place.recipe(row.network)
    history = Run(place.trained(row.network, weights=False) or place.home / row.network).history()
    epochs = [line["epoch"] for line in history]
    with drawing(path, 2, 1, (7, 4.6), sharex=True, height_ratios=(4, 1)) as (_, grid, words):
        (above,), (below,) = grid
        for key, label, color, style, marker in LINES:
            values = [100 * line[key] if key in line else float("nan") for line in history]
            above.plot(epochs, values, style, color=color, marker=marker, ms=4, label=label)
        best = next((line["epoch"] for line in reversed(history) if line["best"]), None)
        if best is not None:
            above.axvline(best, color="0.6", lw=1, ls="-.", label="best epoch (held-out)")
        done = [k / 400 for k in range(401)]
        rates = [recipe.rates.rate(share, recipe.epochs) for share in done]
        below.plot([recipe.epochs * share for share in done], rates, color=DARK)
        plan = recipe.schedule
        steps = plan.milestones if isinstance(plan, Schedule) and plan.name == "step" else ()
        drops = [epoch for epoch in steps if epoch < recipe.epochs]
        for drop in drops:
            above.axvline(drop, color=DARK, lw=1, ls=":", label="the learning rate drops")
            below.axvline(drop, color=DARK, lw=1, ls=":")
        above.set(ylabel="accuracy (%)", ylim=(0, 102), title=f"{row.label}: {recipe.model}, {recipe.threat}")
        above.grid(axis="y", color="0.9")
        above.legend(fontsize=9, loc="lower right", frameon=True, framealpha=1, edgecolor="none")
        below.set(
            xlabel="epochs",
            ylabel="learning rate\n/ its peak",
            xlim=(0, 1.02 * recipe.epochs),
            ylim=(0, 1.08),
            yticks=[0, 1],
        )
        last = history[-1] if history else {}
        facts = ", ".join(f"{label} {100 * last[key]:.2f}" for key, label, *_ in LINES if key in last)
        words.append(f"{figure.title}. After {len(history)} epochs: {facts}.")
