"""Signs that a training goes wrong: a loss stuck at that of a constant answer, a collapse of robust accuracy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from atent.data.images import Images
from atent.methods import is_single_step
from atent.recipe import Recipe

RECENT = 100  # batches


@dataclass
class Tally:
    """Sums over an epoch so far."""

    images: int = 0
    loss: float = 0.0
    right: int = 0
    radius: float = 0.0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)  # the last batches' cross-entropies, of earlier epochs too
    recent_right: list[float] = field(default_factory=list)  # their shares of right answers
    warned: bool = False  # whether the user knows that they are stuck

    def add(self, loss: float, cross_entropy: float, right: int, radius: float, images: int) -> None:
        """Count a batch."""
        self.images += images
        self.loss += loss * images
        self.right += right
        self.radius += radius * images
        self.recent = [*self.recent, cross_entropy][-RECENT:]
        self.recent_right = [*self.recent_right, right / images][-RECENT:]

    def stuck(self, images: Images) -> bool:
        """Whether the last batches' losses are that of a constant answer, and no more answers right than with one.

        The mean of the older and of the newer half of the losses tells: single batches scatter.
        """
        half = len(self.recent) // 2
        if not half:
            return False
        means = fmean(self.recent[:half]), fmean(self.recent[half:])
        plateaus = (images.constant_loss, math.log(len(images.classes)))  # the latter of a network with nothing to say
        level = any(all(abs(mean - plateau) < 0.02 for mean in means) for plateau in plateaus)
        return level and fmean(self.recent_right) <= more_than(images.constant_accuracy)

    def next_epoch(self, images: Images) -> "Tally":
        """An epoch's sums begin anew; the last batches stay, and who was told of a stuck loss is not told again."""
        return Tally(recent=self.recent, recent_right=self.recent_right, warned=self.stuck(images))


def more_than(constant: float) -> float:
    """What share must be right for a network to have learned more than the answer that is right for the share given."""
    return constant + 0.1 * (1 - constant)


def collapsed(history: Sequence[Mapping[str, Any]], constant: float) -> bool:
    """Whether robust accuracy, once a fifth or more, has fallen below half of its best at the last epoch.

    So single-step training ends when it overfits catastrophically: from one epoch to the next PGD breaks every image.
    Epochs that had learned no more than to give one answer (right for the share `constant`) are nothing to fall from.
    """
    learned = [row["robust"] for row in history if "robust" in row and row["clean"] > more_than(constant)]
    return bool(learned) and max(learned) >= 0.2 and bool(history[-1]["robust"] < max(learned) / 2)


def unwatched(recipe: Recipe) -> str:
    """Why catastrophic overfitting of single-step training would go unnoticed; empty if it would not."""
    if not is_single_step(recipe.methods.defense):
        return ""
    if recipe.validation == 0:
        return "with validation = 0 nothing notices when single-step training collapses"
    if is_single_step(recipe.methods.monitor):
        return f"a monitor of one step ({recipe.monitor['name']}) does not notice when single-step training collapses"
    return ""
