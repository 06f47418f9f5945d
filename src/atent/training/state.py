"""The state of a training, and its checkpoint file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, StrictInt, ValidationError
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from atent.data.images import Images
from atent.errors import UserError
from atent.methods import Choice, explain
from atent.parallel.team import current_team
from atent.recipe import Recipe, parse_recipe
from atent.storage.files import join_parts, load_tensors, save_tensors, take_part
from atent.storage.run import Run
from atent.storage.typed import Epoch as Epoch
from atent.training.alarms import RECENT, Tally, learned_accuracy
from atent.training.budget import Spent
from atent.training.loss_scale import LossScale
from atent.training.optimizer_state import pack_optimizer, unpack_optimizer


def score(row: Mapping[str, Any], choose: Choice) -> tuple[float, float]:
    """The score of an epoch: the chosen accuracy on held-out images; if that is equal, the other one decides."""
    robust, clean = row.get("robust", 0.0), row.get("clean", 0.0)
    return (robust, clean) if choose == "robust" else (clean, robust)


def is_finished(history: Sequence[Mapping[str, Any]], recipe: Recipe, over: bool = False) -> bool:
    """Whether all epochs are done, or the last `patience` were not better, or the training has collapsed.

    With a budget of minutes the number of epochs does not count, but whether its time is `over`.
    """
    scores = [score(row, recipe.chosen_by) for row in history]
    since = len(scores) - 1 - scores.index(max(scores)) if scores else 0
    impatient = recipe.patience is not None and since >= recipe.patience
    ended = over if recipe.minutes else len(history) >= recipe.epochs
    return ended or impatient or _collapsed(history)


def _collapsed(history: Sequence[Mapping[str, Any]]) -> bool:
    return bool(history and history[-1].get("collapsed"))


class Position(BaseModel):
    """The header of a checkpoint, without the recipe; `optimizer` lists the tensors of the optimizer's state."""

    epoch: Annotated[StrictInt, Field(ge=0)]
    batch: Annotated[StrictInt, Field(ge=0)]
    tally: Tally
    history: list[Epoch]
    optimizer: list[str] | None = None  # not in checkpoints of the first versions
    optimizer_rest: dict[str, Any] = {}  # what is no tensor in it
    spent: Spent = Field(default_factory=Spent)  # not in checkpoints of earlier versions
    recoveries: Annotated[StrictInt, Field(ge=0, le=10)] = 0
    scale: LossScale | None = None


@dataclass
class State:
    """Everything that changes during training: the content of a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    memory: Tensor | None = None  # the defense's number for each training example, or its pull
    epoch: int = 0
    batch: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[Epoch] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    recoveries: int = 0
    scale: LossScale | None = None  # of the loss in float16
    running: nn.Module = field(init=False)  # the network whose passes train it: itself, or in half precision

    def __post_init__(self) -> None:
        self.running = self.model

    @property
    def result(self) -> nn.Module:
        """The network to evaluate and save: the averaged one if there is one."""
        return self.model if self.average is None else self.average.module

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of the network and of its average."""
        for network in (self.model, self.average):
            yield from network.state_dict().values() if network is not None else ()

    def finished(self, recipe: Recipe) -> bool:
        return is_finished(self.history, recipe, over=self.spent.done >= 1 and self.batch == 0)

    def loss_is_stuck(self, images: Images) -> bool:
        """Whether the loss is stuck within an epoch at that of a constant prediction.

        In the first epoch this counts only after the network has learned something: before, such a loss is normal.
        """
        learned = self.epoch > 0 or self.tally.right > self.tally.images * learned_accuracy(images.constant_accuracy)
        return learned and len(self.tally.recent) == RECENT and self.tally.stuck(images)

    @property
    def collapsed(self) -> bool:
        """Whether robust accuracy collapsed in the last epoch."""
        return _collapsed(self.history)

    def save(self, path: Path, recipe: Recipe) -> None:
        """Write a checkpoint. All processes of a team have the same state, and the first one writes it."""
        if not current_team().leads:
            return
        moments, rest = pack_optimizer(self.optimizer)
        parts = {"": self.model.state_dict(), "optimizer": moments}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        if self.memory is not None:
            parts["memory"] = {"": self.memory}
        position = Position(
            epoch=self.epoch,
            batch=self.batch,
            tally=self.tally,
            history=self.history,
            optimizer=sorted(moments),
            optimizer_rest=rest,
            spent=self.spent,
            recoveries=self.recoveries,
            scale=self.scale,
        )
        save_tensors(path, join_parts(parts), {"recipe": recipe.model_dump(mode="json"), **position.model_dump()})

    def load(self, run: Run, recipe: Recipe, per_epoch: int, path: Path | None = None) -> None:
        """Load a checkpoint, by default the last; an epoch of this training has `per_epoch` batches."""
        path = path or run.last
        tensors, info = load_tensors(path)
        try:
            position = check_header(info, path)
            recipe.check_same(parse_recipe(info["recipe"], str(path)), run.folder)
            _check_position(position, recipe, per_epoch)
            self.model.load_state_dict(take_part(tensors, ""))
            moments = take_part(tensors, "optimizer")
            unpack_optimizer(self.optimizer, moments, position.optimizer, position.optimizer_rest)
            if self.average is not None:
                self.average.load_state_dict(take_part(tensors, "average"))
            if self.memory is not None:
                self.memory = _same_shape(take_part(tensors, "memory")[""], self.memory, "memory")
        except (KeyError, IndexError, ValueError, TypeError, RuntimeError, AttributeError, OverflowError) as error:
            if isinstance(error, UserError):
                raise
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path} is not a checkpoint of this training: {reason}; remove it to start from scratch"
            ) from None
        self.epoch, self.batch, self.tally = position.epoch, position.batch, position.tally
        self.history, self.spent, self.recoveries = position.history, position.spent, position.recoveries
        self.scale = position.scale or self.scale


def save_best(state: State, recipe: Recipe, run: Run) -> None:
    """Write the weights of the epoch that has just ended."""
    about = {"recipe": recipe.model_dump(mode="json"), "log": state.history[-1]}
    save_tensors(run.best, state.result.state_dict(), about)


def check_best(state: State, recipe: Recipe, run: Run) -> None:
    """Refuse a run whose best weights are lost or damaged; those of the epoch that ended last are written again."""
    if not state.history:
        return
    try:
        if not run.best.is_file():
            raise UserError(f"{run.best} is missing")
        load_tensors(run.best)
    except UserError as error:
        if state.batch == 0 and state.history[-1]["best"]:
            if current_team().leads:
                save_best(state, recipe, run)
            return
        best = next((row["epoch"] for row in reversed(state.history) if row["best"]), 0)
        raise UserError(
            f"{error}; it had the weights of epoch {best}, which {run.last.name} no longer has: restore it, or remove "
            f"{run.folder} to train from scratch"
        ) from None


def check_header(info: Mapping[str, Any], path: Path) -> Position:
    """The position in the header of a checkpoint; a UserError if it is no header of one."""
    if not isinstance(info.get("recipe"), Mapping):
        raise UserError(f"{path}: recipe is missing; it is not a checkpoint of a training")
    try:
        return Position.model_validate(info)
    except (ValidationError, OverflowError) as error:
        reason = explain(error, str(path)) if isinstance(error, ValidationError) else f"{path}: {error}"
        raise UserError(f"{reason}; remove it to start from scratch") from None


def _check_position(position: Position, recipe: Recipe, per_epoch: int) -> None:
    """Refuse a position that a training of this recipe cannot have."""
    epoch, batch, logged = position.epoch, position.batch, len(position.history)
    if (not recipe.minutes and epoch > recipe.epochs) or batch > per_epoch or logged != epoch:
        raise ValueError(
            f"epoch {epoch} of {recipe.epochs}, batch {batch} of {per_epoch} and {logged} epochs logged do not match"
        )


def _same_shape(tensor: Tensor, like: Tensor, name: str) -> Tensor:
    if tensor.shape != like.shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; expected {tuple(like.shape)}")
    return tensor
