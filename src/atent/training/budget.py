"""The time of a training: what it has used, what it will take, and a schedule that ends with a budget of minutes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from atent.attacks import ATTACKS
from atent.attacks.cost import passes_per_image
from atent.evaluation.attack import BATCH
from atent.methods import names_in
from atent.network import Passes
from atent.parallel.team import current_team
from atent.recipe import Recipe

PLANNED_AFTER = 20  # batches
SURE_AFTER = 10.0  # seconds, or so many times PLANNED_AFTER: fewer are too few for an estimate
MANY = 5
TRIAL, LATER = BATCH, 1.1  # images that are evaluated for their time, and how much longer they take at the end


@dataclass
class Spent:
    """The time of a training in all its processes, as a checkpoint stores it.

    `used`: seconds; `planned`: those of the whole training, as expected after its first batches; `done`: with a budget,
    the share of the schedule that is done.
    """

    used: float = 0.0
    planned: float | None = None
    done: float = 0.0


class Watch:
    """Measures a training in this process. With a budget it decides how far the schedule is and when an epoch ends.

    After each batch the rest of the schedule is spread over the time that is left, without the time of the evaluations
    to come. So the schedule ends with the budget, however fast the batches are. An epoch is a pass over the training
    images. The last one is cut at the end of the time; the last two share the rest equally, so that none is very short.
    The first batch of a process may compile the network. What it takes longer than the second counts as time before
    the start, and it ends nothing.
    """

    def __init__(self, recipe: Recipe, clock: Callable[[], float], began: float) -> None:
        self.recipe, self.clock = recipe, clock
        self.began = self.origin = self.resumed = self.mark = began
        self.spent, self.per_epoch, self.held = Spent(), 1, 0
        self.batches, self.batch_seconds = 0, 0.0  # of this process; a batch in the mean of the last ones
        self.first_seconds = 0.0  # of its first batch
        self.counts_passes, self.step = False, Passes()  # whether the next batch is counted; the one that was
        self.evaluation: float | None = None  # seconds of the last one

    def resume(self, spent: Spent, per_epoch: int, held: int) -> None:
        """Continue from the time of a checkpoint; `held` images are evaluated after every epoch."""
        self.spent, self.per_epoch, self.held = spent, per_epoch, held
        self.origin = self.began - spent.used
        self.resumed = self.mark = self.clock()

    @property
    def budget(self) -> float | None:
        """Seconds."""
        return None if self.recipe.minutes is None else 60 * self.recipe.minutes

    @property
    def over(self) -> bool:
        """Whether the time of a budget is over."""
        return self.spent.done >= 1

    def count(self, epoch: int, batch: int) -> bool:
        """Count a batch: `batch` of this epoch are done. Returns whether a budget ends the epoch here."""
        took = self._lap()
        self.batches += 1
        self.counts_passes = self.batches == 1  # in a warm-up of eps, the first batch has no search
        weight = 1 if self.batches <= 2 else 1 / min(self.batches - 1, PLANNED_AFTER)  # the first batch is slow
        self.batch_seconds += weight * (took - self.batch_seconds)
        if self.budget is None:
            self._plan(epoch, batch)
            return False
        self.spent.planned = self.budget
        if self.batches == 1:
            self.first_seconds = took
            return False
        if self.batches == 2:
            took += min(self.first_seconds, took)
        left = self.budget - self.spent.used
        evaluation = self.expected_evaluation()
        # The fewest evaluations such that the batches of this epoch and those that are left fit into as many epochs.
        epochs = (batch * self.batch_seconds + left) / (self.per_epoch * self.batch_seconds + evaluation)
        evaluations = max(1, math.ceil(epochs - 1e-6))
        training = left - evaluations * evaluation
        whole = ((evaluations - 1) * self.per_epoch - batch) * self.batch_seconds
        if training < whole / 2:  # what is left after whole epochs is not enough for another evaluation
            evaluations, training = evaluations - 1, whole
        if training <= self.batch_seconds / 2:
            self.spent.done = 1.0
            return True
        self.spent.done += (1 - self.spent.done) * took / (training + took)
        return evaluations == 2 and batch * self.batch_seconds >= training

    def evaluated(self) -> None:
        """Count the evaluation of an epoch. What is left of a budget may be too little for another one."""
        self.evaluation = self._lap()
        batch = self.batch_seconds if self.batches > 1 else 0.0
        if self.budget is not None and self.budget - self.spent.used < self.evaluation + batch:
            self.spent.done = 1.0

    @property
    def wants_trial(self) -> bool:
        """Whether some images are to be evaluated for their time alone: half of a budget is over, and none were yet."""
        return self.budget is not None and self.evaluation is None and self.held > 0 and self.spent.done >= 0.5

    def tried(self, images: int) -> None:
        """Count the evaluation of so many images, at most a batch, for their time; a better network takes longer."""
        self.evaluation = LATER * self._lap() * self._held_here / images

    def expected_evaluation(self) -> float:
        """Seconds: those of the last one; before there is one, those of its passes at the rate of the training."""
        if self.evaluation is not None:
            return self.evaluation
        if not self.step.work:
            return 0.0
        expected = self.batch_seconds * self._held_here * self._monitor_work / self.step.work
        return expected if self.budget is None else min(expected, self.budget / 2)

    @property
    def _held_here(self) -> float:
        """The held-out images that the busiest process of the team evaluates, which takes whole batches."""
        batches = math.ceil(self.held / BATCH)
        return self.held * math.ceil(batches / current_team().size) / max(batches, 1)

    @cached_property
    def _monitor_work(self) -> int:
        return monitor_passes(self.recipe).work

    def position(self, epoch: int, batch: int) -> tuple[int, int]:
        """The batches that are done, and those of the whole training; with a budget those of this process."""
        if self.budget is None:
            return epoch * self.per_epoch + batch, self.recipe.epochs * self.per_epoch
        if self.over:
            return self.batches, self.batches
        rate = self.batches / max(self.mark - self.resumed, 1e-9)  # with evaluations, as the progress line has it
        return self.batches, self.batches + max(1, math.ceil((self.budget - self.spent.used) * rate))

    def verdict(self) -> str:
        """What was planned, next to what it took; empty if the training was too short for an estimate."""
        if self.spent.planned is None:
            return ""
        ratio = self.spent.used / self.spent.planned
        return f"planned {clock_text(self.spent.planned)}, took {clock_text(self.spent.used)} ({ratio:.2f}x)"

    def _lap(self) -> float:
        now = self.clock()
        took, self.mark, self.spent.used = now - self.mark, now, now - self.origin
        return took

    def _plan(self, epoch: int, batch: int) -> None:
        sure = self.spent.used >= SURE_AFTER or self.batches >= MANY * PLANNED_AFTER
        if self.spent.planned is None and self.batches >= PLANNED_AFTER and sure:
            batches = (self.recipe.epochs - epoch) * self.per_epoch - batch
            evaluations = (self.recipe.epochs - epoch) * self.expected_evaluation()
            self.spent.planned = self.spent.used + batches * self.batch_seconds + evaluations


def clock_text(seconds: float) -> str:
    """`0:12:43`: hours, minutes, seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def monitor_passes(recipe: Recipe) -> Passes:
    """The passes of the recipe's monitor for an image that withstands it; none of an attack that is not ours."""
    if not {*ATTACKS, "cascade"}.issuperset(names_in(recipe.monitor)):
        return Passes()
    draws = recipe.monitor_draws if recipe.smooth else 1
    return passes_per_image(recipe.methods.monitor, recipe.make_threat(), sigma=recipe.smooth, draws=draws)
