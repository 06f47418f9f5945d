"""A budget of minutes on machines whose speed changes: simulated trainings, and an evaluation that is cut."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from torch import nn

import atent.training.epoch_end
import atent.training.fit
from atent.data.images import Images, evaluation_batches
from atent.parallel.team import Team
from atent.recipe import Recipe
from atent.storage.files import load_tensors
from atent.storage.rows import Row
from atent.storage.run import Run
from atent.training.budget import PART, Spent, Watch
from atent.training.fit import fit
from atent.training.options import TrainingOptions
from atent.training.step import Step
from processes import together
from short_runs import tiny
from test_distributed import plain, small

BUDGET = 600.0  # seconds
BATCHES = 400  # in the budget, on the machine alone
HELD = 1000  # images
SLOWER = (2, 8)  # times: with one core of two busy, a training with two threads was eight times slower
MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.93)  # of the budget, at which another process starts or ends


@dataclass(frozen=True)
class Case:
    """A training on a machine that is `slow(t)` times slower at the share t of the budget.

    On the machine alone, an evaluation takes the share `evaluation` of the budget, and `epochs` fit into it. `guess` is
    the time of an evaluation by its passes over the real one. The first five batches take `first` times as long.
    """

    name: str
    slow: Callable[[float], float]
    evaluation: float
    epochs: float
    noise: float = 0.0
    first: float = 1.0
    guess: float = 2.0
    batches: int = BATCHES

    @property
    def part(self) -> float:
        """The share of the budget that a batch of the evaluation takes at worst."""
        return self.evaluation * PART / HELD * max(self.slow(k / 200) for k in range(200))

    def run(self) -> float:
        """When the training ends, as a share of the budget."""
        machine, recipe = Machine(self), tiny(minutes=BUDGET / 60)
        watch = Watch(recipe, lambda: machine.now, 0.0)
        batch, parts, count = BUDGET / self.batches, HELD // PART, 0
        per_epoch = round(self.batches / self.epochs)
        watch.resume(Spent(), per_epoch, HELD)
        while not watch.over:
            for k in range(per_epoch):
                count += 1
                machine.work(batch * (self.first if count <= 5 else 1.0))
                if watch.counts_passes:
                    watch.step_work = round(
                        HELD * watch._monitor_work * batch / (self.guess * self.evaluation * BUDGET)
                    )
                ends = watch.count(0, k + 1)
                if watch.wants_trial:
                    machine.evaluate(1 / parts)
                    watch.tried(PART)
                if ends:
                    break
            for done in range(1, parts + 1):
                machine.evaluate(1 / parts)
                if done < parts and not watch.has_time(1 / done):
                    break
            watch.evaluated(done / parts)
        return machine.now / BUDGET


class Machine:
    """A clock that work advances."""

    def __init__(self, case: Case) -> None:
        self.case, self.now, self.random = case, 0.0, Random(0)

    def work(self, seconds: float) -> None:
        """Work that takes so many seconds on the machine alone."""
        left = seconds * math.exp(self.random.gauss(0, self.case.noise))
        while left > 1e-9:
            slow = self.case.slow(self.now / BUDGET)
            took = min(BUDGET / 2000, left * slow)
            self.now, left = self.now + took, left - took / slow

    def evaluate(self, share: float) -> None:
        """A share of the held-out images; in the first half of the time, fewer of them withstand the attack."""
        learned = min(2 * self.now / BUDGET, 1.0)
        self.work(share * self.case.evaluation * BUDGET * (0.3 + 0.7 * learned))


def profiles() -> Iterator[tuple[str, Callable[[float], float]]]:
    yield "steady", lambda _: 1.0
    for times, moment in itertools.product(SLOWER, MOMENTS):
        yield f"{times} times slower at {moment}", lambda t, f=times, at=moment: f if t > at else 1.0  # type: ignore[misc]
        yield f"{times} times faster at {moment}", lambda t, f=times, at=moment: 1.0 if t > at else f  # type: ignore[misc]
    yield "slower and slower", lambda t: 1 + 2 * t
    yield "faster and faster", lambda t: 3 - 2 * min(t, 1.0)
    yield "bursts", lambda t: 3.0 if 20 * t % 1 < 0.3 else 1.0
    yield "short bursts", lambda t: 4.0 if 200 * t % 1 < 0.25 else 1.0


@cache
def cases() -> list[Case]:
    """Evaluations that take little or much of the budget, less than an epoch or many."""
    sizes = [(share, epochs) for share in (0.02, 0.1, 0.2) for epochs in (0.5, 3, 12) if share * epochs < 0.7]
    found = [Case(name, slow, *size) for name, slow in profiles() for size in sizes]
    others: list[dict[str, Any]] = [{"noise": 0.2}, {"noise": 0.4}, {"first": 10.0}, {"guess": 0.5}, {"batches": 40}]
    return found + [Case(str(other), lambda _: 1.0, *size, **other) for size in sizes for other in others]


def drawn(count: int) -> list[Case]:
    """Cases at random, on which no constant of the budget was chosen."""
    source = Random(12345)
    found: list[Case] = []
    while len(found) < count:
        times, pieces, period = source.uniform(1.2, 8), source.uniform(0.1, 0.6), source.uniform(5, 300)
        begin, end = sorted((source.uniform(0, 1), source.uniform(0, 1)))
        slow: Callable[[float], float] = source.choice(
            [
                lambda t, f=times, at=begin: f if t > at else 1.0,  # type: ignore[misc]
                lambda t, f=times, at=begin: 1.0 if t > at else f,  # type: ignore[misc]
                lambda t, f=times, a=begin, b=end: f if a < t < b else 1.0,  # type: ignore[misc]
                lambda t, f=times, a=begin, b=end: 1.0 if a < t < b else f,  # type: ignore[misc]
                lambda t, f=times, p=period, share=pieces: f if p * t % 1 < share else 1.0,  # type: ignore[misc]
                lambda t, f=times: 1 + (f - 1) * min(t, 1.0),
                lambda t, f=times: f - (f - 1) * min(t, 1.0),
            ]
        )
        evaluation, epochs = source.uniform(0.01, 0.2), source.choice([0.3, 0.7, 1.3, 2.5, 5, 9])
        noise, first, guess = source.choice([0, 0.2, 0.4]), source.choice([1, 5, 10]), source.choice([0.5, 1, 2])
        case = Case("drawn", slow, evaluation, epochs, noise, first, guess, source.choice([100, 400, 2000]))
        found += [case] if evaluation * epochs < 0.7 else []
    return found


def missed(case: Case) -> bool:
    return not 0.95 <= case.run() <= 1.05


def test_a_budget_is_kept_within_5_percent_at_any_speed() -> None:
    """If a batch of the evaluation takes at most a twentieth of the budget. The rules were made with these cases."""
    fine = [case for case in cases() if case.part <= 0.05]
    assert len(fine) > 150
    assert [case for case in fine if missed(case)] == []


def test_of_evaluations_that_cannot_be_cut_in_time_few_are_late() -> None:
    """A hundred images take more than a twentieth of the budget while the machine is slow."""
    coarse = [case for case in cases() if case.part > 0.05]
    assert len(coarse) > 40
    assert sum(map(missed, coarse)) <= 6


def test_of_machines_drawn_at_random_few_miss() -> None:
    """A batch may take a twelfth of the budget here, while the machine is slow, and the first ones ten times that."""
    fine = [case for case in drawn(300) if case.part <= 0.05]
    assert sum(map(missed, fine)) <= 0.05 * len(fine)


def ticking(team: Team, recipe: Recipe, out: Path) -> None:
    """A training whose clock goes on by a second whenever the first process asks."""
    del team
    ticks = map(float, itertools.count())
    fit(recipe, out, model=plain(), how=TrainingOptions(say=lambda _: None, clock=lambda: next(ticks)))


def test_processes_with_unequal_parts_of_a_batch_end_together(tmp_path: Path) -> None:
    """Of a batch of 11 images they have 5 and 6, and each counts other passes; by these they would end differently."""
    seconds = 18
    changes: dict[str, object] = {"defense__name": "pgd-at", "monitor__steps": 4, "schedule__warmup": 0.0}
    recipe = small(batch=11, minutes=seconds / 60, **changes)
    together(ticking, recipe, tmp_path)
    assert 0.9 * seconds <= load_tensors(Run(tmp_path).last)[1]["spent"]["used"] <= 1.1 * seconds


def test_an_evaluation_that_takes_too_long_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 images in three batches of 5 s: more than a fifth of half a minute after the first."""
    now, said = [0.0], list[str]()

    def wait(seconds: float) -> None:
        now[0] += seconds

    def step(*_: Any, **__: Any) -> Step:
        wait(1.0)
        return Step(0.5, 0.5, 2, 0.0)

    def attack(_: nn.Module, held: Images, *__: Any, batch: int, **___: Any) -> Iterator[list[Row]]:
        for part in evaluation_batches(len(held), batch):
            wait(5.0)
            yield [Row(index=k, label=0, clean=0, adversarial=0, size=0.0, robust=True) for k in range(300)[part]]

    monkeypatch.setattr(atent.training.fit, "train_step", step)
    monkeypatch.setattr(atent.training.epoch_end, "attack_images", attack)
    recipe = tiny(minutes=0.5, batch=4, monitor_examples=300, schedule__name="constant", schedule__warmup=0.0)
    run = fit(recipe, tmp_path, how=TrainingOptions(say=said.append, clock=lambda: now[0]))
    (row,) = run.history()
    assert row["examples"] == 100
    assert "time is short: 100 of 300 held-out images were evaluated" in said
    assert now[0] == pytest.approx(30, abs=1.5)
