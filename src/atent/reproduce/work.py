"""Train a network and measure it: what one process does. All of it can be killed at any time and resumed."""

import os
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from math import prod
from multiprocessing import parent_process
from pathlib import Path

from atent.attacks import make_attack
from atent.errors import Interrupted, UserError
from atent.evaluation.attack import attack_target
from atent.evaluation.certify import certify_target, named_radii
from atent.evaluation.estimate import estimate_target
from atent.evaluation.sampling import Goal
from atent.evaluation.suites import Choice
from atent.evaluation.target import Target, every_image, open_target, smooth_target
from atent.machine import pick_device, prepare
from atent.models import is_users
from atent.recipe import Recipe
from atent.reproduce.networks import MADE, recipe_at
from atent.reproduce.plan import BudgetName, Measure, Row
from atent.reproduce.stand_ins import make_data
from atent.smoothing.stopping import Smoothing
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.options import TrainingOptions


@dataclass(frozen=True)
class Job:
    """A network, and what is missing of it: its training (unless `trained` is a run or `zoo:NAME`) and measures.

    The measures are in rows of tables, because the last weights have a folder of rows of their own.
    """

    network: str
    budget: BudgetName
    home: Path
    data_dir: Path | None
    trained: Path | None
    start: Path | None
    missing: tuple[tuple[Row, Measure], ...]
    device: str = "cpu"
    checkpoint_batches: int | None = None


def work(job: Job) -> None:
    """Do the job in this process, with one thread."""
    prepare(1)
    recipe = recipe_at(job.network, job.budget, job.home, job.start, job.device)
    if Path(recipe.data).stem in MADE:
        make_data(Path(recipe.data), job.data_dir)
    folder = job.trained
    if folder is None:
        folder = job.home / job.network
        how = TrainingOptions(pick_device(job.device), checkpoint_batches=job.checkpoint_batches)
        fit(recipe, folder, data_dir=job.data_dir, how=how)
    for row, measure in job.missing:
        weights = folder if row.weights == "best" else Run(folder).last
        take(measure, weights, recipe, job.home / row.folder, job.data_dir, job.device)


def take(
    measure: Measure, weights: Path, recipe: Recipe, out: Path, data_dir: Path | None, device: str = "cpu"
) -> None:
    """Measure a network; the rows are written to `out`, and those that are there are kept."""
    own = recipe.model if is_users(recipe.model) else None
    target = open_target(weights, model=own, data=recipe.data, data_dir=data_dir, device=device)
    if measure.kind == "certified":
        _certify(target, measure, out, device)
        return
    target = smooth_target(every_image(target, 1, measure.images and min(measure.images, len(target.images))))
    threat = Threat.parse(measure.threat or recipe.threat)
    if measure.kind == "strong":
        (phases,) = Choice("strong", {}, None).phases(target, [threat])
        estimate_target(target, phases, Goal(measure.within), out, device=device)
    else:
        settings = dict(measure.attack)
        (planned,) = Choice(None, settings, make_attack(settings)).plan(target, [threat])
        attack_target(target, planned, out, device=device)


def _certify(target: Target, measure: Measure, out: Path, device: str) -> None:
    count = measure.images or len(target.images)
    every = max(len(target.images) // count, 1)
    found = every_image(target, every, count)
    goals = named_radii([0.0], [measure.covers], prod(target.images.shape.image))
    how = Smoothing(**measure.attack, radii=tuple(radius for radius, _ in goals))
    certify_target(found, how, goals, out, every=every, device=device)


def work_alone(job: Job, log: Path) -> None:
    """Do the job as a process of its own. Its output goes to `log`; it ends with the process that started it.

    It has its own process group: Ctrl-C reaches the parent alone, which asks it to stop once.
    """
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            work(job)
            code = 0
        except UserError as error:
            print(f"error: {error}", file=file)
            code = 2
        except Interrupted as stop:
            print(stop, file=file)
            code = stop.code
        except Exception:
            traceback.print_exc(file=file)
            code = 1
    raise SystemExit(code)


def _end_with_parent() -> None:
    """A process whose parent was killed would otherwise continue, and refuse its folder to the next command."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
