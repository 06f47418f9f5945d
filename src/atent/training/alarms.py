"""Signs of a failed training: the loss is stuck at that of a constant prediction, or robust accuracy collapses."""

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
    recent: list[float] = field(default_factory=list)  # cross-entropies of the last batches, also of earlier epochs
    recent_right: list[float] = field(default_factory=list)  # the accuracies of these batches
    warned: bool = False  # whether the user has been warned that the loss is stuck

    def add(self, loss: float, cross_entropy: float, right: int, radius: float, images: int) -> None:
        """Count a batch."""
        self.images += images
        self.loss += loss * images
        self.right += right
        self.radius += radius * images
        self.recent = [*self.recent, cross_entropy][-RECENT:]
        self.recent_right = [*self.recent_right, right / images][-RECENT:]

    def stuck(self, images: Images) -> bool:
        """Whether loss and accuracy of the last batches are those of a constant prediction.

        The means of the older and the newer half of the losses decide, since single batches vary.
        """
        half = len(self.recent) // 2
        if not half:
            return False
        means = fmean(self.recent[:half]), fmean(self.recent[half:])
        # The losses of the class frequencies and of equal probabilities.
        plateaus = (images.constant_loss, math.log(len(images.classes)))
        level = any(all(abs(mean - plateau) < 0.02 for mean in means) for plateau in plateaus)
        return level and fmean(self.recent_right) <= learned_accuracy(images.constant_accuracy)

    def next_epoch(self, images: Images) -> "Tally":
        """Reset the sums for the next epoch; keep the last batches, and whether a stuck loss was reported."""
        return Tally(recent=self.recent, recent_right=self.recent_right, warned=self.stuck(images))


def learned_accuracy(constant: float) -> float:
    """The accuracy above which a network has learned more than a constant prediction with accuracy `constant`."""
    return constant + 0.1 * (1 - constant)


def collapsed(history: Sequence[Mapping[str, Any]], constant: float) -> bool:
    """Whether robust accuracy was .2 or more and is less than half of its maximum after the last epoch.

    This is catastrophic overfitting of single-step training: from one epoch to the next PGD breaks every image. Epochs
    whose network predicts little more than a constant class (accuracy `constant`) are not counted.
    """
    learned = [row["robust"] for row in history if "robust" in row and row["clean"] > learned_accuracy(constant)]
    return bool(learned) and max(learned) >= 0.2 and bool(history[-1]["robust"] < max(learned) / 2)


def unwatched(recipe: Recipe) -> str:
    """Why catastrophic overfitting of single-step training would not be detected; empty if it would be."""
    if not is_single_step(recipe.methods.defense):
        return ""
    if recipe.validation == 0:
        return "with validation = 0 a collapse of single-step training is not detected"
    if is_single_step(recipe.methods.monitor):
        return f"a monitor with one step ({recipe.monitor['name']}) does not detect a collapse of single-step training"
    return ""
