"""Training: one function, `fit`. The state between two batches is all there is, so any of them can be resumed."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from atent.data import Images, augment_crop_flip, epoch_batches, hold_out, load
from atent.defenses import Defense
from atent.errors import Interrupted, UserError
from atent.evaluate import attack_images, clean_rate, robust_rate
from atent.losses import cross_entropy
from atent.machine import environment
from atent.optim import averaged
from atent.progress import progress, stop_requests
from atent.randomness import derive, derive_seed
from atent.recipe import Recipe, parse_recipe
from atent.runs import Run, alone, join_parts, load_tensors, save_tensors, take_part, write_rows
from atent.threat import Threat

SECONDS_BETWEEN_CHECKPOINTS = 60.0


@dataclass
class Tally:
    """Sums over an epoch so far."""

    images: int = 0
    loss: float = 0.0
    right: int = 0
    radius: float = 0.0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)  # the last batches' cross-entropies, to notice a plateau


@dataclass
class State:
    """Everything that changes while training; what a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    epoch: int = 0
    batch: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> nn.Module:
        """The network to evaluate and keep: the averaged one if there is one."""
        return self.model if self.average is None else self.average.module

    def save(self, path: Path, recipe: Recipe) -> None:
        parts = {"": self.model.state_dict(), "optimizer": _optimizer_tensors(self.optimizer)}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        position = {"epoch": self.epoch, "batch": self.batch, "tally": vars(self.tally), "history": self.history}
        save_tensors(path, join_parts(parts), {"recipe": recipe.model_dump(mode="json"), **position})

    def load(self, run: Run, recipe: Recipe) -> None:
        tensors, info = load_tensors(run.last)
        try:
            run.check_same(recipe, parse_recipe(info["recipe"], str(run.last)))
            self.model.load_state_dict(take_part(tensors, ""))
            _load_optimizer(self.optimizer, take_part(tensors, "optimizer"))
            if self.average is not None:
                self.average.load_state_dict(take_part(tensors, "average"))
            self.epoch, self.batch, self.history = info["epoch"], info["batch"], info["history"]
            self.tally = Tally(**info["tally"])
        except (KeyError, IndexError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{run.last} is not a state of this training: {reason}; remove it to start anew") from None


class Step(NamedTuple):
    """What a training step did: its loss, and at the last term's points cross-entropy, right answers, mean radius."""

    loss: float
    cross_entropy: float
    right: int
    radius: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    generator: torch.Generator,
) -> Step:
    """One step on one batch; each loss term is back-propagated as it comes, so only one graph is alive.

    Where the loss or its gradient is not finite, the weights stay as they are and the step says so.
    """
    model.train()
    optimizer.zero_grad()
    total, term = 0.0, None
    for term in defense(model, x, y, threat, generator):
        loss = term.loss.mean()
        loss.backward()
        total += float(loss.detach())
    if term is None:
        raise UserError(f"the defense {defense} yielded no loss term")
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    if not (math.isfinite(total) and torch.stack(norms).isfinite().all()):
        return Step(math.nan, math.nan, 0, math.nan)
    optimizer.step()
    logits = term.logits.detach()
    return Step(
        total,
        float(cross_entropy(logits, y).mean()),
        int((logits.argmax(1) == y).sum()),
        float(threat.size(term.x_adv - x).mean()),
    )


def fit(
    recipe: Recipe,
    out: Path | str,
    *,
    data_dir: Path | str | None = None,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Run:
    """Train by the recipe into the folder `out`; called again, go on from its last checkpoint.

    Choices (the best epoch) are made on images held out of the training set; the test set is not read.
    """
    run = Run(Path(out))
    images = load(recipe.data, "train", Path(data_dir) if data_dir else None)
    train, held = hold_out(images, recipe.validation, derive(recipe.seed, "hold-out"))
    state = _fresh_state(recipe, train, device)
    if run.recipe_file.exists():
        run.check_same(recipe, run.recipe())
    with alone(run.last):
        _fit(state, recipe, train, held, run, device, say)
    return run


def _fit(
    state: State,
    recipe: Recipe,
    train: Images,
    held: Images,
    run: Run,
    device: torch.device | str,
    say: Callable[[str], None],
) -> None:
    run.begin(recipe, environment())
    if run.last.exists():
        state.load(run, recipe)
        if state.epoch < recipe.epochs:
            say(f"going on from epoch {state.epoch + 1}, batch {state.batch} ({run.last})")
    write_rows(run.log, state.history)
    per_epoch = len(epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", 0)))
    total = recipe.epochs * per_epoch
    label = f"training {run.folder.name}"
    with stop_requests() as stop, progress(label, total, "batches", state.epoch * per_epoch + state.batch) as show:
        while state.epoch < recipe.epochs:
            for _ in _train_epoch(state, recipe, train, per_epoch, run, device):
                show(state.epoch * per_epoch + state.batch, _words(state, recipe))
                if stop:
                    state.save(run.last, recipe)
                    raise Interrupted(stop[0])
            _finish_epoch(state, recipe, held, run, device, say)


def _fresh_state(recipe: Recipe, train: Images, device: torch.device | str) -> State:
    torch.manual_seed(derive_seed(recipe.seed, "weights"))
    model = recipe.make_model(train.shape).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = averaged(model, recipe.averaging) if recipe.averaging else None
    return State(model, recipe.optimizer.build(model), average)


def _train_epoch(
    state: State, recipe: Recipe, train: Images, per_epoch: int, run: Run, device: torch.device | str
) -> Iterator[None]:
    """Train the rest of the epoch, yielding after every batch; the state is saved about once a minute."""
    defense, threat = recipe.make_defense(), recipe.make_threat()
    order = epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", state.epoch))
    saved = began = time.monotonic()
    pause = SECONDS_BETWEEN_CHECKPOINTS
    for indices in order[state.batch :]:
        here = (state.epoch, state.batch)
        done = (state.epoch + state.batch / per_epoch) / recipe.epochs
        for group in state.optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * recipe.schedule.rate(done, recipe.epochs)
        generator = derive(recipe.seed, "batch", *here, device=device)
        torch.manual_seed(derive_seed(recipe.seed, "dropout", *here))
        x, y = train.batch(indices, device)
        if recipe.augment == "crop-flip":
            x = augment_crop_flip(x, generator)
        now = threat.scaled(recipe.schedule.eps_share(done))
        step = train_step(state.model, state.optimizer, defense, x, y, now, generator)
        if not step.finite:
            kept = f"{run.last} is the last good state" if run.last.exists() else "nothing was saved yet"
            raise UserError(
                f"the loss or gradient of epoch {here[0] + 1}, batch {here[1]} is not finite; {kept}. A smaller "
                f"optimizer.lr (now {recipe.optimizer.lr:g}), with another --out, is the usual cure"
            )
        if state.average is not None:
            state.average.update_parameters(state.model)
        tally = state.tally
        tally.images += len(y)
        tally.loss += step.loss * len(y)
        tally.right += step.right
        tally.radius += step.radius * len(y)
        tally.recent = [*tally.recent, step.cross_entropy][-100:]
        state.batch += 1
        began, tally.seconds = time.monotonic(), tally.seconds + time.monotonic() - began
        if began - saved > pause:
            state.save(run.last, recipe)
            saved = time.monotonic()
            pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (saved - began))  # a large network's takes seconds itself
        yield


def _finish_epoch(
    state: State, recipe: Recipe, held: Images, run: Run, device: torch.device | str, say: Callable[[str], None]
) -> None:
    """Log the epoch, measure robust accuracy on held-out images, keep the best and the last."""
    tally = state.tally
    row: dict[str, Any] = {
        "epoch": state.epoch + 1,
        "loss": tally.loss / tally.images,
        "train_robust": tally.right / tally.images,
        "radius": tally.radius / tally.images,
        "seconds": tally.seconds,
    }
    if len(held):
        sample = held.take(slice(recipe.monitor_examples))
        batches = attack_images(
            state.result, sample, recipe.make_monitor(), recipe.make_threat(), seed=recipe.seed, device=device
        )
        rows = [row for batch in batches for row in batch]
        row |= {"clean": clean_rate(rows).value, "robust": robust_rate(rows).value, "examples": len(rows)}
    # Dominated by neither: a robust gain that ruins the clean accuracy is not one, so ties go to the cleaner epoch.
    score = (row.get("robust", 0.0), row.get("clean", 0.0))
    best = max(((past.get("robust", 0.0), past.get("clean", 0.0)) for past in state.history), default=(-1.0, -1.0))
    row["best"] = score >= best
    say(_epoch_line(row, recipe))
    plateau = math.log(len(held.classes))
    if tally.recent and all(abs(loss - plateau) < 0.02 for loss in tally.recent):
        row["plateau"] = True
        say(
            f"the loss has stuck at log({len(held.classes)}) = {plateau:.3f}: the network gives every image the same "
            "answer. Raise schedule.warmup or schedule.eps_warmup so that eps grows while the rate is high, or try "
            "another seed or a smaller optimizer.lr"
        )
    state.history.append(row)
    state.epoch, state.batch, state.tally = state.epoch + 1, 0, Tally()
    if row["best"]:
        save_tensors(run.best, state.result.state_dict(), {"recipe": recipe.model_dump(mode="json"), "log": row})
    state.save(run.last, recipe)
    write_rows(run.log, state.history)


def _words(state: State, recipe: Recipe) -> str:
    recent = state.tally.recent
    loss = f"loss {sum(recent) / len(recent):.3f}" if recent else ""
    return f"epoch {min(state.epoch + 1, recipe.epochs)}/{recipe.epochs}  {loss}"


def _epoch_line(row: dict[str, Any], recipe: Recipe) -> str:
    held = f"  held-out clean {100 * row['clean']:.2f} robust {100 * row['robust']:.2f}" if "clean" in row else ""
    return (
        f"epoch {row['epoch']}/{recipe.epochs}  loss {row['loss']:.4f}  radius {row['radius']:.3f}"
        f"{held}  {row['seconds']:.0f} s{'  (best)' if row['best'] else ''}"
    )


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Momentum and the like by parameter number and name; hyper-parameters come from the recipe."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, values in states.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        # In the parameter's own memory layout, as the optimizer made it.
        laid_out = torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
        states.setdefault(int(number), {})[name] = laid_out.detach()
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
