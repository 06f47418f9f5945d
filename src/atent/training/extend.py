"""More epochs for a finished training."""

from pathlib import Path

from atent.errors import UserError
from atent.parallel.team import current_team
from atent.progress import say
from atent.recipe import Recipe, recipe_of
from atent.storage import disk
from atent.storage.files import alone, load_tensors, read_json, save_tensors, write_json
from atent.storage.run import Run
from atent.training.state import check_header, is_finished

MARK = ".more-epochs-"  # an empty file whose name ends with the epochs: the command that asked for them has not ended


def extend(run: Run, recipe: Recipe, more: int) -> Recipe:
    """As `_extended`, which the first process of a team does for all."""
    team = current_team()
    longer = _extended(run, recipe, more) if team.leads else recipe
    return longer.model_copy(update={"epochs": team.first(longer.epochs)})


def _extended(run: Run, recipe: Recipe, more: int) -> Recipe:
    """Let the finished training of a run continue for `more` epochs; returns the recipe to continue with.

    The schedule is that of the longer training: at 10 + 5 epochs the learning rate continues from two thirds of it. A
    training whose epochs are not all done keeps its recipe, so that the same command resumes after an interruption. So
    does one whose command was killed after the last epoch.
    """
    if recipe.minutes is not None:
        raise UserError(
            f"--more-epochs {more} with minutes = {recipe.minutes:g}; allowed: for a training without a budget"
        )
    if not run.last.exists():
        raise UserError(f"--more-epochs {more}: no training in {run.folder}; allowed: for a finished one")
    with alone(run.last):
        found, (tensors, info) = recipe_of(run), load_tensors(run.last)
        check_header(info, run.last)
        same = recipe.model_copy(update={"epochs": found.epochs}).resuming(found)
        same.check_same(found, run.folder)
        if info["epoch"] < found.epochs:
            if is_finished(info["history"], same):
                raise UserError(
                    f"--more-epochs {more}: {run.folder} stopped early, after epoch {info['epoch']} of {found.epochs}; "
                    "allowed: for a training that did all its epochs"
                )
            at = f"{run.folder} is at epoch {info['epoch']} of {found.epochs}"
            say(f"{at}; --more-epochs {more} adds none, because that training is not finished")
            return same
        if _mark(run, found.epochs).exists():
            done = f"{run.folder} has all {found.epochs} epochs of a command that was killed after the last one"
            say(f"{done}; --more-epochs {more} adds none. The next one does")
            return same
        epochs = found.epochs + more
        _mark(run, epochs).touch()
        disk.sync_folder(run.folder)
        # The checkpoint first: after a kill between the two writes, the same command does both again.
        longer = {**info, "recipe": {**info["recipe"], "epochs": epochs}}
        if "spent" in info:
            longer["spent"] = {**info["spent"], "planned": None}  # that was for fewer epochs
        save_tensors(run.last, tensors, longer)
        write_json(run.recipe_file, {**read_json(run.recipe_file), "epochs": epochs})
    return same.model_copy(update={"epochs": epochs})


def settle(run: Run) -> None:
    """The command has ended: a further `--more-epochs` adds epochs again."""
    for mark in run.folder.glob(f"{MARK}*") if current_team().leads else ():
        mark.unlink(missing_ok=True)


def _mark(run: Run, epochs: int) -> Path:
    return run.folder / f"{MARK}{epochs}"
