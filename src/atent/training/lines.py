"""The lines that a training prints, each at most 80 characters wide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atent.recipe import Recipe
from atent.storage.files import load_tensors
from atent.training.state import State, check_header


def progress_text(state: State, recipe: Recipe) -> str:
    """The epoch and the mean loss of the last batches."""
    recent = state.tally.recent
    loss = f"loss {sum(recent) / len(recent):.3f}" if recent else ""
    epoch = state.epoch + 1
    return f"epoch {_of_all(epoch if recipe.minutes else min(epoch, recipe.epochs), recipe)}  {loss}"


def epoch_line(row: Mapping[str, Any], recipe: Recipe) -> str:
    """A finished epoch; `clean` and `robust` are accuracies on held-out images, in percent."""
    held = f"clean {100 * row['clean']:.1f}, robust {100 * row['robust']:.1f}, " if "clean" in row else ""
    return (
        f"epoch {_of_all(row['epoch'], recipe)}: loss {row['loss']:.3f}, {held}radius {row['radius']:.3f}, "
        f"{row['seconds']:.0f} s{', best' if row['best'] else ''}"
    )


def _of_all(epoch: int, recipe: Recipe) -> str:
    """`3/10`; with a budget the number of epochs is not known in advance."""
    return str(epoch) if recipe.minutes else f"{epoch}/{recipe.epochs}"


def kept_line(last: Path) -> str:
    """What a training that stops here leaves behind."""
    if not last.exists():
        return "nothing, no checkpoint was saved yet"
    found = check_header(load_tensors(last)[1], last)
    return f"{last} (epoch {found.epoch + 1}, batch {found.batch})"


def not_finite_line(state: State, last: Path, rate: float) -> str:
    """That the loss is not finite at this batch, what is kept, and what may help."""
    kept = f"{last} has the last good state" if last.exists() else "no checkpoint was saved yet"
    return (
        f"the loss or gradient of epoch {state.epoch + 1}, batch {state.batch} is not finite; {kept}. A smaller "
        f"optimizer.lr (now {rate:g}), with another --out, usually helps"
    )
