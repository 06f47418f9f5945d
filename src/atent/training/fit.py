"""Training: one function, `fit`. A training can be resumed after any batch, since `State` is all that changes."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from atent.attacks import Cascade
from atent.attacks.protocols import title_of
from atent.data.dataset import DataSet, open_data
from atent.data.given import Given
from atent.data.images import Images, augment_crop_flip, epoch_batches, hold_out
from atent.errors import Interrupted, UserError
from atent.evaluation.attack import attack_images
from atent.machine import environment, ram_bytes
from atent.methods import readable
from atent.models.build import OBJECT
from atent.network import logits_only
from atent.parallel.batch_norm import synchronized
from atent.parallel.join import joined
from atent.parallel.team import current_team
from atent.progress import progress, stop_requests
from atent.randomness import derive, derive_seed
from atent.recipe import Recipe, parse_recipe, recipe_of
from atent.smoothing.smoothed import Smoothed
from atent.storage.files import alone, save_tensors, write_rows
from atent.storage.rows import clean_rate, robust_rate
from atent.storage.run import Run
from atent.training.alarms import collapse_text, collapsed, masked, unwatched
from atent.training.lines import epoch_line, kept_line, progress_text
from atent.training.options import TrainingOptions
from atent.training.start import initial_state, load_start
from atent.training.state import Epoch, State, score
from atent.training.step import NotFiniteError, adapt, train_step, with_memory
from atent.training.tensorboard import Draw, board, no_board


@readable
def fit(
    recipe: Recipe,
    out: Path | str,
    *,
    data_dir: Path | str | None = None,
    model: nn.Module | None = None,
    given: Given | None = None,
    how: TrainingOptions = TrainingOptions(),  # noqa: B008 (it is frozen)
) -> Run:
    """Train with the recipe and write to the folder `out`; called again, resume from its last checkpoint.

    If `model` is given, it is trained instead of the network of the recipe; likewise images that are `given`. The best
    epoch and early stopping are decided on images held out of the training set; the test set is not read. The processes
    that torchrun started train together, and the first one writes.
    """
    run, recipe = Run(Path(out)), parse_recipe(recipe.model_dump(exclude_unset=True), "recipe", make="all")
    recipe.rates.rate(0.0, recipe.epochs)  # a user's own schedule is refused before any work
    if model is not None:
        recipe = recipe.model_copy(update={"model": f"{type(model).__module__}.{type(model).__qualname__}{OBJECT}"})
    if run.recipe_file.exists():
        recipe = recipe.resuming(recipe_of(run))
        recipe.check_same(recipe_of(run), run.folder)
    data = _data(recipe, Path(data_dir) if data_dir else None, given, run)
    train, held = hold_out(data.images("train"), recipe.validation, derive(recipe.seed, "hold-out"))
    held = held.take(slice(recipe.monitor_examples)).in_memory()
    stream = train.nbytes > ram_bytes() / 4 if how.stream is None else how.stream
    if not stream:
        train = train.in_memory()
    with joined() as team, logits_only(model) if model is not None else nullcontext():
        how = how if team.leads else replace(how, say=lambda _: None, tensorboard=False)
        state = initial_state(recipe, train, model, how.device)
        if recipe.weights and not run.last.exists():
            digest = load_start(state.model, recipe, train.shape)
            how.say(f"starting from {recipe.weights} (sha256 {digest[:12]})")
        with alone(run.last) if team.leads else nullcontext():
            _fit(state, recipe, data, train, held, run, how)
        team.wait()
    return run


def _data(recipe: Recipe, data_dir: Path | None, given: Given | None, run: Run) -> DataSet:
    known = run.data_record()
    if given is None:
        scale = {"resize": recipe.resize, "white": recipe.white}
        return open_data(run.place_of(recipe.data), data_dir, **scale, test_share=recipe.test_share, known=known)
    if known is not None and known != given.record:
        raise UserError(f"the images are not those that {run.folder} was trained on; allowed: the same, or another out")
    return given


def _fit(
    state: State, recipe: Recipe, data: DataSet, train: Images, held: Images, run: Run, how: TrainingOptions
) -> None:
    if run.recipe_file.exists():
        recipe.check_same(recipe_of(run), run.folder)
    team = current_team()
    if team.leads:
        run.begin(recipe.model_dump(mode="json"), environment(team.size), data.record)
    per_epoch = len(epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", 0)))
    if run.last.exists():
        state.load(run, recipe, per_epoch)
        if not state.finished(recipe):
            how.say(f"resuming from epoch {state.epoch + 1}, batch {state.batch} ({run.last})")
    else:
        watched = f"each epoch is evaluated on {len(held):,} held-out images" if len(held) else "no held-out images"
        processes = f"; {team.size} processes" if team.size > 1 else ""
        how.say(f"{recipe.data}: {train.summary}; {watched}; device: {how.device}{processes}")
        if reason := unwatched(recipe):
            how.say(f"caution: {reason}")
    team.check_same(recipe.model_dump(mode="json"), "recipe")
    team.check_same([state.epoch, state.batch], "epoch and batch to start from")
    team.copy_first(state.tensors())
    if team.leads:
        write_rows(run.log, state.history)
    total = recipe.epochs * per_epoch
    label = f"training {run.folder.name}"
    with (
        board(run.board, state.history) if how.tensorboard else no_board() as draw,
        stop_requests(lambda: kept_line(run.last), tell=team.size == 1) as stop,
        synchronized(state.model) if recipe.sync_batchnorm and team.size > 1 else nullcontext(),
        progress(label, total, "batches", state.epoch * per_epoch + state.batch) as show,
    ):
        while not state.finished(recipe):
            for _ in _train_epoch(state, recipe, train, per_epoch, run, how):
                show(state.epoch * per_epoch + state.batch, progress_text(state, recipe))
                if asked := team.largest(stop[0] if stop else 0):
                    state.save(run.last, recipe)
                    team.wait()
                    raise Interrupted(asked, kept_line(run.last))
            _finish_epoch(state, recipe, train, held, run, how, draw)


def _train_epoch(
    state: State, recipe: Recipe, train: Images, per_epoch: int, run: Run, how: TrainingOptions
) -> Iterator[None]:
    """Train the rest of the epoch and yield after every batch; the state is saved at intervals."""
    (defense, optimizer, _), threat = recipe.methods, recipe.make_threat()
    order = epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", state.epoch))[state.batch :]
    team = current_team()
    mine = [indices[team.part(len(indices))] for indices in order]
    saved = began = time.monotonic()
    pause = 60 * how.checkpoint_minutes
    for indices, (x, y) in zip(order, train.batches(mine, how.device, how.workers), strict=True):
        here = (state.epoch, state.batch)
        done = (state.epoch + state.batch / per_epoch) / recipe.epochs
        for group in state.optimizer.param_groups:
            group["lr"] = optimizer.lr * recipe.rates.rate(done, recipe.epochs)
        generator = team.share(derive(recipe.seed, "batch", *here, device=how.device), len(indices))
        torch.manual_seed(derive_seed(recipe.seed, "dropout", *here, *([team.rank] if team.rank else [])))
        if recipe.augment == "crop-flip":
            x = augment_crop_flip(x, generator)
        now = threat.scaled(recipe.rates.eps_share(done))
        try:
            with with_memory(defense, state.memory, indices, how.device, now) as informed:
                added = {"awp": recipe.awp if done >= recipe.awp_start else 0.0, "gibbs": recipe.gibbs}
                step = train_step(state.model, state.optimizer, informed, x, y, now, generator, **added)
            adapt(defense, state.memory, step, now)
        except NotFiniteError:
            kept = f"{run.last} has the last good state" if run.last.exists() else "no checkpoint was saved yet"
            raise UserError(
                f"the loss or gradient of epoch {here[0] + 1}, batch {here[1]} is not finite; {kept}. A smaller "
                f"optimizer.lr (now {optimizer.lr:g}), with another --out, usually helps"
            ) from None
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.tally.add(step.loss, step.cross_entropy, step.right, step.radius, len(indices))
        state.batch += 1
        if state.loss_is_stuck(train):
            _warn(state, train, how)
        began, state.tally.seconds = time.monotonic(), state.tally.seconds + time.monotonic() - began
        asked = how.checkpoint_batches is not None and state.batch % how.checkpoint_batches == 0
        if asked or began - saved > pause:
            state.save(run.last, recipe)
            saved = time.monotonic()
            pause = max(pause, 20 * (saved - began))  # saving a large network takes seconds
        yield


def _finish_epoch(
    state: State, recipe: Recipe, train: Images, held: Images, run: Run, how: TrainingOptions, draw: Draw
) -> None:
    """Evaluate on held-out images, log the epoch, and save the best weights and the last state."""
    tally, team = state.tally, current_team()
    team.check_close(sum(float(p.detach().abs().sum()) for p in state.model.parameters()), "weights")
    row: Epoch = {
        "epoch": state.epoch + 1,
        "loss": tally.loss / tally.images,
        "train_robust": tally.right / tally.images,
        "radius": tally.radius / tally.images,
        "seconds": tally.seconds,
        "best": False,
    }
    if len(held):
        _evaluate(row, state.result, recipe, held, how)
    choose = recipe.chosen_by
    row["best"] = all(score(row, choose) >= score(past, choose) for past in state.history)
    how.say(epoch_line(row, recipe))
    if tally.stuck(train):
        row["plateau"] = True
        _warn(state, train, how)
    if sign := masked(recipe.methods.monitor, row.get("broken_by", {}), len(held)):
        row["masked"] = True
        if not any(past.get("masked") for past in state.history):
            how.say(f"epoch {row['epoch']}: {sign}")
    if choose == "robust" and collapsed([*state.history, row], held.constant_accuracy):
        row["collapsed"] = True
    state.history.append(row)
    state.epoch, state.batch, state.tally = state.epoch + 1, 0, tally.next_epoch(train)
    if row["best"] and team.leads:
        save_tensors(run.best, state.result.state_dict(), {"recipe": recipe.model_dump(mode="json"), "log": row})
    state.save(run.last, recipe)
    if team.leads:
        write_rows(run.log, state.history)
    draw(row)
    if state.collapsed:
        best = next(past for past in reversed(state.history) if past["best"])
        how.say(collapse_text(row, best, run.best))
    elif state.finished(recipe) and state.epoch < recipe.epochs:
        how.say(f"stopped early: no better epoch among the last {recipe.patience} (patience)")


def _evaluate(row: Epoch, network: nn.Module, recipe: Recipe, held: Images, how: TrainingOptions) -> None:
    """Add the accuracy on held-out images, alone and under the monitor; of a cascade also what each attack broke."""
    monitor = recipe.methods.monitor
    network = Smoothed(network, recipe.smooth, recipe.monitor_draws) if recipe.smooth else network
    batches = attack_images(network, held, monitor, recipe.make_threat(), seed=recipe.seed, device=how.device)
    rows = [one for batch in batches for one in batch]
    row |= {"clean": clean_rate(rows).value, "robust": robust_rate(rows).value, "examples": len(rows)}
    if isinstance(monitor, Cascade):
        broken = Counter(one.get("by") for one in rows)
        row["broken_by"] = {title: broken[title] for title in map(title_of, monitor.attacks)}


def _warn(state: State, train: Images, how: TrainingOptions) -> None:
    """Warn once that the loss is stuck."""
    if not state.tally.warned:
        state.tally.warned = True
        how.say(
            f"epoch {state.epoch + 1}, batch {state.batch}: the loss is stuck at {train.constant_loss:.3f}, that of a "
            "network with the same prediction for every image. Increase schedule.warmup or schedule.eps_warmup so that "
            "eps grows while the learning rate is high, or try another seed or a smaller optimizer.lr"
        )
