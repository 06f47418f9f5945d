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
PART = 100  # images of a batch in the evaluations of a budget
FEWEST = 25  # without one
LATER = 1.1  # how much longer an evaluation takes at the end than the trial
# Shares of a budget:
RECENT = 0.03  # the speed of the machine is that of the batches in this time
LONGEST, LATEST = 0.2, 1.02  # an evaluation that would be longer, or end later, is cut
REST = 0.045  # more than this, left after the last evaluation, is used


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
    to come. So the schedule ends with the budget, however fast the batches are. An evaluation is expected to take as
    many batches' time as the last ones did, so it follows the speed of the machine. One that would end too late is cut.
    If much time is left after the last one, the schedule goes back by that much, and the training goes on.

    An epoch is a pass over the training images. The last one is cut at the end of the time; the last two share the rest
    equally, so that none is very short. The first batch of a process may compile the network. What it takes longer than
    the second counts as time before the start, and it ends nothing.
    """

    def __init__(self, recipe: Recipe, clock: Callable[[], float], began: float) -> None:
        self.recipe, self.clock = recipe, clock
        self.began = self.origin = self.resumed = self.mark = self.part_mark = began
        self.spent, self.per_epoch, self.held = Spent(), 1, 0
        self.batches, self.batch_seconds = 0, 0.0  # of this process; a batch in the mean of the last ones
        self.first_seconds = 0.0  # of its first batch
        self.counts_passes = False  # whether the passes of the next batch are counted
        self.step_work = 0  # those of the batch that was, in the process with most of its images
        self.evaluation: float | None = None  # seconds of the last one,
        self.batch_then = 0.0  # and of a batch at that time
        self.longest = math.inf if self.budget is None else LONGEST * self.budget  # seconds of an evaluation

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
    def part(self) -> int:
        """Images of a batch in an evaluation."""
        return part_of(self.recipe)

    @property
    def over(self) -> bool:
        """Whether the time of a budget is over."""
        return self.spent.done >= 1

    def count(self, epoch: int, batch: int) -> bool:
        """Count a batch: `batch` of this epoch are done. Returns whether a budget ends the epoch here."""
        took = self._lap()
        self.batches += 1
        self.counts_passes = self.batches == 2  # in a warm-up of eps, the first two batches have no search
        self.batch_seconds += self._weight * (took - self.batch_seconds)
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

    @property
    def _weight(self) -> float:
        """Of the last batch in the mean; the first one is slow."""
        if self.batches <= 2:
            return 1.0
        recent = PLANNED_AFTER if self.budget is None else RECENT * self.budget / max(self.batch_seconds, 1e-9)
        return 1 / min(self.batches - 1, max(recent, PLANNED_AFTER))

    def has_time(self, share: float) -> bool:
        """Whether an evaluation may go on with a batch that has this share of its images so far."""
        if self.budget is None:
            return True
        now = self.clock()
        more = max(share * (now - self.mark), now - self.part_mark)  # as the mean batch, or as the last one
        self.part_mark = now
        return now + more - self.mark <= self.longest and now + more - self.origin <= LATEST * self.budget

    def evaluated(self, share: float = 1.0) -> None:
        """Count the evaluation of an epoch, on this share of the held-out images.

        What is left of a budget may be too little for another one. If it is not, though the schedule was over, or if it
        is too little for a whole one, half of it is for training.
        """
        self._set_evaluation(self._lap() / share)
        if self.budget is None:
            return
        left, rest = self.budget - self.spent.used, REST * self.budget
        batch = self.batch_seconds if self.batches > 1 else 0.0
        part = self._whole_evaluation() * min(self.part / max(self.held, 1), 1.0)
        if left < max(rest if self.over else 0.0, part + batch):
            self.spent.done = 1.0
            return
        if self.over:
            self.spent.done = 1 - left / self.budget
        if left < self.expected_evaluation() + max(rest, batch):
            self.longest = left / 2

    @property
    def wants_trial(self) -> bool:
        """Whether some images are to be evaluated for their time alone: half of a budget is over, and none were yet."""
        return self.budget is not None and self.evaluation is None and self.held > 0 and self.spent.done >= 0.5

    def tried(self, images: int) -> None:
        """Count the evaluation of so many images, at most a batch, for their time; a better network takes longer."""
        self._set_evaluation(LATER * self._lap() * self._held_here / images)

    def _set_evaluation(self, seconds: float) -> None:
        self.evaluation, self.batch_then = seconds, self.batch_seconds

    def expected_evaluation(self) -> float:
        """Seconds of the next one, whole or cut."""
        return min(self._whole_evaluation(), self.longest)

    def _whole_evaluation(self) -> float:
        """As many batches as the last one; before there is one, its passes at the rate of the training."""
        if self.evaluation is not None:
            return self.evaluation * (self.batch_seconds / self.batch_then if self.batch_then else 1.0)
        return self.batch_seconds * self._held_here * self._monitor_work / (self.step_work or math.inf)

    @property
    def _held_here(self) -> float:
        """The held-out images that the busiest process of the team evaluates, which takes whole batches."""
        batches = math.ceil(self.held / self.part)
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
        took, self.spent.used = now - self.mark, now - self.origin
        self.mark = self.part_mark = now
        return took

    def _plan(self, epoch: int, batch: int) -> None:
        sure = self.spent.used >= SURE_AFTER or self.batches >= MANY * PLANNED_AFTER
        if self.spent.planned is None and self.batches >= PLANNED_AFTER and sure:
            batches = (self.recipe.epochs - epoch) * self.per_epoch - batch
            evaluations = (self.recipe.epochs - epoch) * self.expected_evaluation()
            self.spent.planned = self.spent.used + batches * self.batch_seconds + evaluations


def part_of(recipe: Recipe) -> int:
    """Images of a batch in an evaluation: half of a training batch, but at least 25 of it, and at most 250.

    So it needs less memory than the training, and what it leaves in pieces is small. With a budget 100, since it may be
    cut after each.
    """
    return PART if recipe.minutes else min(recipe.batch, max(recipe.batch // 2, FEWEST), BATCH)


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
