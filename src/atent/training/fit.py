"""Training: one function, `fit`. A training can be resumed after any batch, since `State` is all that changes."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from atent.data.augmentation import AUGMENTATIONS
from atent.data.dataset import DataSet
from atent.data.given import Given
from atent.data.images import Images, epoch_batches
from atent.errors import Interrupted, UserError
from atent.inputs import known
from atent.machine import emulates_bf16, environment, ram_bytes
from atent.methods import readable
from atent.models.build import OBJECT
from atent.network import counted, logits_only
from atent.parallel.batch_norm import synchronized
from atent.parallel.join import joined
from atent.parallel.team import current_team
from atent.progress import expect, progress, stop_requests
from atent.randomness import derive, derive_seed
from atent.recipe import Recipe, parse_recipe, recipe_of
from atent.storage.files import alone, write_rows
from atent.storage.run import Run
from atent.training.alarms import stuck_text, unwatched
from atent.training.budget import Watch
from atent.training.epoch_end import evaluate_held, finish_epoch, warn_stuck
from atent.training.lines import kept_line, not_finite_line, progress_text
from atent.training.loss_scale import NotFiniteError
from atent.training.options import TrainingOptions
from atent.training.recovery import FailedError, fail, is_good, is_lost, keep_first, take_back
from atent.training.start import initial_state, load_start, split, training_data
from atent.training.state import State, check_best
from atent.training.step import adapt, train_step, with_memory
from atent.training.tensorboard import board, no_board


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
    began = how.clock()
    recipe.rates.rate(0.0, recipe.epochs)  # a user's own schedule is refused before any work
    if model is not None:
        recipe = recipe.model_copy(update={"model": f"{type(model).__module__}.{type(model).__qualname__}{OBJECT}"})
    if run.members.exists():
        raise UserError(f"{run.folder} is an ensemble of trained networks; allowed: another folder, with --weights")
    if run.recipe_file.exists():
        recipe = recipe.resuming(recipe_of(run))
        recipe.check_same(recipe_of(run), run.folder)
    data = training_data(recipe, Path(data_dir) if data_dir else None, given, run)
    train, held = split(recipe, data.images("train"))
    held = held.take(slice(recipe.monitor_examples)).in_memory()
    stream = train.nbytes > ram_bytes() / 4 if how.stream is None else how.stream
    if not stream:
        train = train.in_memory()
    with joined() as team, logits_only(model) if model is not None else nullcontext():
        if how.compile and recipe.sync_batchnorm and team.size > 1:
            raise UserError("compile with sync_batchnorm in several processes; allowed: one of the two")
        how = how if team.leads else replace(how, say=lambda _: None, tensorboard=False)
        state = initial_state(recipe, train, model, how)
        if recipe.weights and not run.last.exists():
            digest = load_start(state.model, recipe, train.shape)
            how.say(f"starting from {recipe.weights} (sha256 {digest[:12]})")
        clock = partial(team.first_of, how.clock) if recipe.minutes else how.clock  # a budget is the first one's
        watch = Watch(recipe, clock, team.first(began) if recipe.minutes else began)
        with alone(run.last) if team.leads else nullcontext():
            _fit(state, data, train, held, run, how, watch)
        team.wait()
    return run


def _fit(
    state: State, data: DataSet, train: Images, held: Images, run: Run, how: TrainingOptions, watch: Watch
) -> None:
    recipe = watch.recipe
    if run.recipe_file.exists():
        recipe.check_same(recipe_of(run), run.folder)
    team = current_team()
    if team.leads:
        run.begin(recipe.model_dump(mode="json"), environment(team.size), data.record)
    per_epoch = len(epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", 0)))
    if run.last.exists():
        state.load(run, recipe, per_epoch)
        check_best(state, recipe, run)
        if not state.finished(recipe):
            how.say(f"resuming from epoch {state.epoch + 1}, batch {state.batch} ({run.last})")
    else:
        watched = f"each epoch is evaluated on {len(held):,} held-out images" if len(held) else "no held-out images"
        processes = f"; {team.size} processes" if team.size > 1 else ""
        how.say(f"{recipe.data}: {train.summary}; {watched}; device: {how.device}{processes}")
        if reason := unwatched(recipe):
            how.say(f"caution: {reason}")
        if recipe.amp == "bf16" and emulates_bf16(how.device):
            how.say("caution: this processor has no bfloat16 instructions; --amp off is faster here")
    team.check_same(recipe.model_dump(mode="json"), "recipe")
    team.check_same([state.epoch, state.batch], "epoch and batch to start from")
    team.copy_first(state.tensors())
    watch.resume(state.spent, per_epoch, len(held))
    if team.leads:
        write_rows(run.log, state.history)
    begun = not state.finished(recipe)
    if begun and recipe.recoveries:
        keep_first(state, recipe, train, run)
    trial = held.take(slice(watch.part))
    label, (done, total) = f"training {run.folder.name}", watch.position(state.epoch, state.batch)
    with (
        board(run.board, state.history) if how.tensorboard else no_board() as draw,
        stop_requests(lambda: kept_line(run.last), tell=team.size == 1) as stop,
        synchronized(state.model) if recipe.sync_batchnorm and team.size > 1 else nullcontext(),
        progress(label, total, "batches", done) as show,
    ):
        began, told = time.monotonic(), not how.compile
        while not state.finished(recipe):
            try:
                for _ in _train_epoch(state, recipe, train, run, how, watch):
                    if not told:
                        how.say(f"compiled: the first batch took {time.monotonic() - began:.1f} s")
                        told = True
                    done, total = watch.position(state.epoch, state.batch)
                    expect(total)
                    show(done, progress_text(state, recipe))
                    if asked := team.largest(stop[0] if stop else 0):
                        state.save(run.last, recipe)
                        team.wait()
                        raise Interrupted(asked, kept_line(run.last))
                    if watch.wants_trial:
                        evaluate_held({}, state.result, recipe, trial, how, watch)
                        watch.tried(len(trial))
                draw(finish_epoch(state, recipe, train, held, run, how, watch))
            except FailedError as failed:
                take_back(state, failed, recipe, per_epoch, run, how)
    if team.leads:
        run.good.unlink(missing_ok=True)
    if begun and (verdict := watch.verdict()):
        how.say(verdict)


def _train_epoch(
    state: State, recipe: Recipe, train: Images, run: Run, how: TrainingOptions, watch: Watch
) -> Iterator[None]:
    """Train the rest of the epoch and yield after every batch; the state is saved at intervals."""
    if watch.over:
        return
    (defense, optimizer, _), threat = recipe.methods, recipe.make_threat()
    order = epoch_batches(len(train), recipe.batch, derive(recipe.seed, "order", state.epoch))[state.batch :]
    team = current_team()
    mine = [indices[team.part(len(indices))] for indices in order]
    saved = began = time.monotonic()
    pause, proven = 60 * how.checkpoint_minutes, False
    for indices, (x, y) in zip(order, train.batches(mine, how.device, how.workers), strict=True):
        here = (state.epoch, state.batch)
        done = state.spent.done if recipe.minutes else (state.epoch + state.batch / watch.per_epoch) / recipe.epochs
        for group in state.optimizer.param_groups:
            group["lr"] = optimizer.lr * recipe.rates.rate(done, recipe.epochs) * 0.5**state.recoveries
        generator = team.share(derive(recipe.seed, "batch", *here, device=how.device), len(indices))
        torch.manual_seed(derive_seed(recipe.seed, "dropout", *here, *([team.rank] if team.rank else [])))
        if recipe.augment != "none":
            x = AUGMENTATIONS[recipe.augment](x, generator)
        now = threat.scaled(recipe.rates.eps_share(done))
        try:
            # Images are read so that they are in the box: the first batch shows whether network and labels fit.
            sure = known(x) if proven else nullcontext()
            counting = counted(state.running) if watch.counts_passes else nullcontext()
            memory = with_memory(defense, state.memory, indices, how.device, now)
            with sure, memory as informed, counting as passes:
                step = train_step(
                    state.running,
                    state.optimizer,
                    informed,
                    x,
                    y,
                    now,
                    generator,
                    awp=recipe.awp if done >= recipe.awp_start else 0.0,
                    gibbs=recipe.gibbs,
                    scale=state.scale,
                )
            if passes is not None:  # parts of a batch differ in size, and all processes must decide alike
                watch.step_work = team.largest(passes.work)
            adapt(defense, state.memory, step, now)
        except NotFiniteError:
            fail(state, recipe, "the loss or its gradient is not finite")
            raise UserError(not_finite_line(state, run.last, optimizer.lr)) from None
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.tally.add(step.loss, step.cross_entropy, step.right, step.radius, len(indices))
        state.batch += 1
        proven = True
        if is_lost(state, recipe, train, done):
            fail(state, recipe, stuck_text(train))
        if state.loss_is_stuck(train):
            warn_stuck(state, train, how)
        ends = watch.count(state.epoch, state.batch)
        began, state.tally.seconds = time.monotonic(), state.tally.seconds + time.monotonic() - began
        asked = how.checkpoint_batches is not None and state.batch % how.checkpoint_batches == 0
        if asked or began - saved > pause:
            state.save(run.last, recipe)
            if recipe.minutes and recipe.recoveries and is_good(state, train):
                state.save(run.good, recipe)  # after `last`, which is then never behind it
            saved = time.monotonic()
            pause = max(pause, 20 * (saved - began))  # saving a large network takes seconds
        yield
        if ends:
            return
