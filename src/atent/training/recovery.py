"""A training that fails is taken back to its last good state, and continues with half the learning rate."""

from statistics import fmean

from atent.data.images import Images
from atent.optim.schedule import Schedule
from atent.parallel.team import current_team
from atent.recipe import Recipe
from atent.storage.files import write_rows
from atent.storage.run import Run
from atent.training.alarms import RECENT, learned_accuracy
from atent.training.options import TrainingOptions
from atent.training.state import State

LEAST = 10  # batches that show whether a training is good
LATE = 0.1  # of a schedule without warm-up: by then a training has left the plateau


class FailedError(Exception):
    """The training has failed in the way that the message states, and can be taken back."""


def fail(state: State, recipe: Recipe, why: str) -> None:
    """Raise `FailedError` if the recipe allows a further recovery, and time is left for it."""
    if state.recoveries < (recipe.recoveries or 0) and state.spent.done < 1:
        raise FailedError(f"epoch {state.epoch + 1}, batch {state.batch}: {why}")


def is_lost(state: State, recipe: Recipe, images: Images, done: float) -> bool:
    """Whether the loss is stuck at that of a constant prediction, or has never left it and eps has its full size."""
    if not recipe.recoveries or len(state.tally.recent) < RECENT:
        return False
    full = recipe.schedule.warmup * recipe.schedule.eps_warmup if isinstance(recipe.schedule, Schedule) else 0.0
    return state.loss_is_stuck(images) or (done >= max(full, LATE) and state.tally.stuck(images))


def is_good(state: State, images: Images) -> bool:
    """Whether the network has learned something in the last batches and is not losing it again."""
    if state.tally.stuck(images):
        return False
    right = state.tally.recent_right
    half = len(right) // 2
    if half < LEAST:
        return True
    older, newer = fmean(right[:half]), fmean(right[half:])
    return newer >= max(learned_accuracy(images.constant_accuracy), 0.8 * older)


def keep_first(state: State, recipe: Recipe, images: Images, run: Run) -> None:
    """Save the state in which a process begins, if there is no good one, or a kill came before it was saved as such."""
    if not run.good.exists() or (state.batch == 0 and is_good(state, images)):
        state.save(run.good, recipe)


def take_back(
    state: State, failed: FailedError, recipe: Recipe, per_epoch: int, run: Run, how: TrainingOptions
) -> None:
    """Load the last good state. The time that was used and the number of recoveries are kept."""
    spent, recoveries = state.spent, state.recoveries + 1
    state.load(run, recipe, per_epoch, run.good)
    spent.done = state.spent.done
    state.spent, state.recoveries = spent, recoveries
    state.save(run.last, recipe)
    if current_team().leads:
        write_rows(run.log, state.history)
    how.say(
        f"{failed}; back to epoch {state.epoch + 1}, batch {state.batch}, with the learning rate times "
        f"{0.5**recoveries:g} (recovery {recoveries} of {recipe.recoveries})"
    )
