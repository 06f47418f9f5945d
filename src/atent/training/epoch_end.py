"""The end of an epoch: its evaluation on held-out images, its line in the log, its checkpoints."""

from collections import Counter
from typing import Any

from torch import nn

from atent.attacks import Cascade
from atent.attacks.protocols import title_of
from atent.data.images import Images, evaluation_batches
from atent.evaluation.attack import attack_images
from atent.network import borrowed, predict
from atent.parallel.team import current_team
from atent.recipe import Recipe
from atent.smoothing.smoothed import Smoothed
from atent.storage.files import write_rows
from atent.storage.rows import Row, clean_rate, robust_rate
from atent.storage.run import Run
from atent.training.alarms import STUCK_ADVICE, collapse_text, collapsed, masked, stuck_text
from atent.training.budget import Watch
from atent.training.lines import epoch_line
from atent.training.options import TrainingOptions
from atent.training.recovery import fail, is_good
from atent.training.state import Epoch, State, save_best, score


def finish_epoch(
    state: State, recipe: Recipe, train: Images, held: Images, run: Run, how: TrainingOptions, watch: Watch
) -> Epoch:
    """Evaluate on held-out images, log the epoch, and save the best weights and the last state; returns the row."""
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
        evaluate_held(row, state.result, recipe, held, how, watch)
        if not recipe.smooth:
            row["train_clean"] = clean_accuracy(state.result, train, row["examples"], how, watch)
    watch.evaluated(row["examples"] / len(held) if len(held) else 1.0)
    choose = recipe.chosen_by
    better = all(score(row, choose) >= score(past, choose) for past in state.history)
    # What may be taken back is not the best, so that the file of the best epoch is always that of an epoch in the log.
    row["best"] = better and (not state.history or not recipe.recoveries or is_good(state, train))
    how.say(epoch_line(row, recipe))
    if tally.stuck(train):
        row["plateau"] = True
        warn_stuck(state, train, how)
    if sign := masked(recipe.methods.monitor, row.get("broken_by", {}), row.get("examples", 0)):
        row["masked"] = True
        if not any(past.get("masked") for past in state.history):
            how.say(f"epoch {row['epoch']}: {sign}")
    if choose == "robust" and collapsed([*state.history, row], held.constant_accuracy):
        fail(state, recipe, f"robust accuracy on held-out images collapsed to {100 * row['robust']:.2f}")
        row["collapsed"] = True
    if state.recoveries:
        row["recoveries"] = state.recoveries
    state.history.append(row)
    state.epoch, state.batch, state.tally = state.epoch + 1, 0, tally.next_epoch(train)
    if row["best"] and team.leads:
        save_best(state, recipe, run)
    state.save(run.last, recipe)
    if recipe.recoveries and is_good(state, train):
        state.save(run.good, recipe)
    if team.leads:
        write_rows(run.log, state.history)
    if state.collapsed:
        best = next(past for past in reversed(state.history) if past["best"])
        how.say(collapse_text(row, best, run.best))
    elif state.finished(recipe) and not watch.over and state.epoch < recipe.epochs:
        how.say(f"stopped early: no better epoch among the last {recipe.patience} (patience)")
    return row


def evaluate_held(
    row: Epoch | dict[str, Any], network: nn.Module, recipe: Recipe, held: Images, how: TrainingOptions, watch: Watch
) -> None:
    """Add the accuracy on held-out images, alone and under the monitor; of a cascade also what each attack broke.

    An evaluation that takes too much of a budget is cut after one of its batches.
    """
    monitor = recipe.methods.monitor
    network = Smoothed(network, recipe.smooth, recipe.monitor_draws) if recipe.smooth else network
    batches = attack_images(
        network, held, monitor, recipe.make_threat(), seed=recipe.seed, device=how.device, batch=watch.part
    )
    rows: list[Row] = []
    for batch in batches:
        rows += batch
        if len(rows) < len(held) and not watch.has_time(len(batch) / len(rows)):
            how.say(f"time is short: {len(rows):,} of {len(held):,} held-out images were evaluated")
            break
    row |= {"clean": clean_rate(rows).value, "robust": robust_rate(rows).value, "examples": len(rows)}
    if isinstance(monitor, Cascade):
        broken = Counter(one.get("by") for one in rows)
        row["broken_by"] = {title: broken[title] for title in map(title_of, monitor.attacks)}


def clean_accuracy(network: nn.Module, images: Images, count: int, how: TrainingOptions, watch: Watch) -> float:
    """The accuracy on the first images: training images as they are, not augmented and not attacked."""
    right, count = 0, min(count, len(images))
    with borrowed(network):
        for part in evaluation_batches(count, watch.part):
            x, y = images.batch(part)
            right += int((predict(network, x.to(how.device)).cpu() == y).sum())
    return right / count


def warn_stuck(state: State, train: Images, how: TrainingOptions) -> None:
    """Warn once that the loss is stuck."""
    if not state.tally.warned:
        state.tally.warned = True
        how.say(f"epoch {state.epoch + 1}, batch {state.batch}: {stuck_text(train)}. {STUCK_ADVICE}")
