"""Signs of a failed training: a loss stuck at that of a constant prediction, a collapse, masked gradients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from atent.attacks import Attack, Cascade
from atent.attacks.protocols import title_of
from atent.data.images import Images
from atent.methods import is_gradient_free, is_single_step
from atent.recipe import Recipe

RECENT = 100  # batches
STUCK_ADVICE = (
    "Increase schedule.warmup or schedule.eps_warmup so that eps grows while the learning rate is high, or try another "
    "seed or a smaller optimizer.lr"
)
MASKED = 0.02  # of the held-out images: as many are broken without gradients after attacks with gradients failed


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


def stuck_text(images: Images) -> str:
    """That the loss is stuck, in a sentence without its end."""
    return (
        f"the loss is stuck at {images.constant_loss:.3f}, that of a network with the same prediction for every image"
    )


def collapse_text(row: Mapping[str, Any], best: Mapping[str, Any], kept: Path) -> str:
    """How robust accuracy collapsed from its best epoch, whose weights are `kept`, and what may help."""
    why = (
        "catastrophic overfitting: the attack used in training has become too weak"
        if row["clean"] >= best["clean"] - 0.1
        else f"clean accuracy also fell, to {100 * row['clean']:.2f}: the training diverged"
    )
    return (
        f"stopped: robust accuracy on held-out images collapsed from {100 * best['robust']:.2f} to "
        f"{100 * row['robust']:.2f} ({why}). {kept} has the weights of epoch {best['epoch']}. More steps, a smaller "
        "step or fewer epochs may avoid this; choose = 'clean' continues such a training"
    )


def masked(monitor: Attack, broken_by: Mapping[str, int], examples: int) -> str:
    """The sign of masked gradients, in a sentence: attacks without gradients break what those with gradients left.

    Empty if they break at most .02 of the images, or if no attack with gradients comes before them.
    """
    attacks = monitor.attacks if isinstance(monitor, Cascade) else ()
    with_gradients = [not is_gradient_free(attack) for attack in attacks]
    later = attacks[with_gradients.index(True) :] if any(with_gradients) else ()
    free = list(dict.fromkeys(title_of(attack) for attack in later if is_gradient_free(attack)))
    count = sum(broken_by[title] for title in free)
    if count <= MASKED * examples:
        return ""
    return (
        f"{' and '.join(free)}, without gradients, broke {count} of {examples} held-out images that attacks with "
        "gradients had failed on: gradients are probably masked, and strong attacks would break more"
    )


def unwatched(recipe: Recipe) -> str:
    """Why catastrophic overfitting of single-step training would not be detected; empty if it would be."""
    if not is_single_step(recipe.methods.defense):
        return ""
    if recipe.validation == 0:
        return "with validation = 0 a collapse of single-step training is not detected"
    if is_single_step(recipe.methods.monitor):
        return f"a monitor with one step ({recipe.monitor['name']}) does not detect a collapse of single-step training"
    return ""
