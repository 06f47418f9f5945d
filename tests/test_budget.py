"""A budget of minutes: the schedule ends with the time, at any speed; and what was planned, next to what it took."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atent.training.epoch_end
import atent.training.fit
from atent.attacks import make_attack
from atent.attacks.cost import passes_per_image
from atent.errors import UserError
from atent.parallel.team import Team, working_in
from atent.recipe import Recipe
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.budget import Spent, Watch, monitor_passes
from atent.training.extend import extend
from atent.training.fit import fit
from atent.training.options import TrainingOptions
from atent.training.step import Step
from short_runs import tiny

PER_EPOCH = 50  # batches


class KilledError(Exception):
    pass


@dataclass
class Simulated:
    """A clock that only batches and evaluations advance; batch k takes `batch(k)` seconds."""

    batch: Callable[[int], float] = lambda _: 1.0
    evaluation: float = 0.0
    killed_at: int = -1
    now: float = 1000.0
    shares: list[float] = field(default_factory=list)  # of the schedule, before each batch
    evaluated_after: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def run(self, recipe: Recipe, per_epoch: int = PER_EPOCH) -> Watch:
        """The loop of a training without anything else."""
        watch = Watch(recipe, lambda: self.now, self.now)
        watch.resume(Spent(), per_epoch, 0)
        while not watch.over:
            for batch in range(per_epoch):
                self.work(watch.spent.done)
                if watch.count(len(self.evaluated_after), batch + 1):
                    break
            self.evaluate({})
            watch.evaluated()
        return watch

    def fit(self, recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
        """A training with this clock; the learning rate of its schedule is the share that is left."""

        def step(_: nn.Module, optimizer: torch.optim.Optimizer, *__: Any, **___: Any) -> Step:
            self.work(1 - optimizer.param_groups[0]["lr"])
            return Step(0.5, 0.5, 2, 0.0)

        monkeypatch.setattr(atent.training.fit, "train_step", step)
        for module in (atent.training.fit, atent.training.epoch_end):
            monkeypatch.setattr(module, "evaluate_held", lambda row, *_: self.evaluate(row))
        how = TrainingOptions(say=self.said.append, clock=lambda: self.now, checkpoint_batches=20)
        return fit(recipe, out, how=how)

    def work(self, share: float) -> None:
        if len(self.shares) == self.killed_at:
            raise KilledError
        self.now += self.batch(len(self.shares))
        self.shares.append(share)

    def evaluate(self, row: dict[str, Any]) -> None:
        self.evaluated_after.append(len(self.shares))
        self.now += self.evaluation
        row |= {"clean": 0.5, "robust": 0.5, "examples": 20}

    @property
    def seconds(self) -> float:
        return self.now - 1000.0


class Linear:
    """A schedule: the share of the training that is left."""

    def rate(self, done: float, epochs: int) -> float:
        del epochs
        return 1 - done

    def eps_share(self, done: float) -> float:
        del done
        return 1.0


def short(**changes: object) -> Recipe:
    """50 batches an epoch."""
    return tiny(batch=4, optimizer__lr=1.0, schedule__name="constant", schedule__warmup=0.0, **changes)


@pytest.mark.parametrize("evaluation", [0.0, 20.0])
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(lambda _: 1.0, id="steady"),
        pytest.param(lambda k: 60.0 if k == 0 else 1.0, id="slow first batch"),
        pytest.param(lambda k: 1.0 if k < 150 else 3.0, id="another process starts"),
        pytest.param(lambda k: 3.0 if k < 100 else 1.0, id="another process ends"),
        pytest.param(lambda k: 0.5 + k % 2, id="uneven"),
        pytest.param(lambda _: 0.02, id="fast"),
        pytest.param(lambda _: 25.0, id="slow"),
    ],
)
def test_the_schedule_ends_when_the_time_does(batch: Callable[[int], float], evaluation: float) -> None:
    simulated = Simulated(batch, evaluation)
    simulated.run(tiny(minutes=10))
    last = max(map(batch, (1001, 1002)))
    assert 600 - 1.5 * evaluation - last <= simulated.seconds <= 600 + last
    assert simulated.shares == sorted(simulated.shares)  # the schedule only moves forward
    assert simulated.shares[0] == 0.0
    assert simulated.shares[-1] > 1 - max(3 * last / 600, 0.001)
    assert simulated.evaluated_after[-1] == len(simulated.shares)


def test_half_of_the_time_is_half_of_the_schedule() -> None:
    simulated = Simulated()
    simulated.run(tiny(minutes=10))
    assert simulated.shares[1] == 0.0  # whether the first batch is slow is known after the second
    assert simulated.shares[2:] == pytest.approx([k / 600 for k in range(2, 600)])


@pytest.mark.parametrize("per_epoch", [1, PER_EPOCH])
@pytest.mark.parametrize("compiling", [120.0, 179.0])
def test_a_slow_first_batch_is_time_before_the_start(compiling: float, per_epoch: int) -> None:
    """With 3 minutes, the schedule has the rest of the time: each second is an equal share of it."""
    simulated, left = Simulated(lambda k: compiling if k == 0 else 1.0), 180 - compiling
    simulated.run(tiny(minutes=3), per_epoch)
    assert simulated.shares[:2] == [0.0, 0.0]
    assert simulated.shares[2:] == pytest.approx([k / (left + 1) for k in range(2, len(simulated.shares))])
    assert simulated.seconds == pytest.approx(180, abs=1)


@pytest.mark.parametrize(("size", "share"), [(1, 1), (2, 0.5), (3, 0.4), (4, 0.3), (9, 0.2)])
def test_the_processes_of_a_team_evaluate_in_turn(size: int, share: float) -> None:
    """1,000 held-out images are ten batches; a process trains on 10 images in a second, with 3 passes each."""
    now = iter([0.0, 1.0, 2.0, 4.5])
    recipe = tiny(minutes=60)
    watch = Watch(recipe, lambda: next(now), 0.0)
    watch.resume(Spent(), PER_EPOCH, 1000)
    with working_in(Team(0, size)):
        watch.count(0, 1)
        watch.step_work = 40
        watch.count(0, 2)
        rate = watch.step_work / 1.0
        assert watch.expected_evaluation() == pytest.approx(share * 1000 * monitor_passes(recipe).work / rate)
        watch.tried(watch.part)  # a batch of 100 images in 2.5 s, a tenth more at the end
        assert watch.expected_evaluation() == pytest.approx(share * 25 * 1.1)


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    [
        pytest.param(30, [30], id="less than an epoch"),
        pytest.param(49, [49], id="one epoch"),
        pytest.param(75, [38, 37], id="no short last epoch"),
        pytest.param(102, [50, 26, 26], id="the last two share the rest"),
        pytest.param(1, [2], id="one batch"),
        pytest.param(0.1, [2], id="less than a batch"),  # the first ends nothing
    ],
)
def test_an_epoch_is_a_pass_over_the_images_and_the_last_two_share_the_rest(seconds: int, epochs: list[int]) -> None:
    simulated = Simulated()
    simulated.run(tiny(minutes=seconds / 60))
    ends = [0, *simulated.evaluated_after]
    assert [end - begin for begin, end in pairwise(ends)] == pytest.approx(epochs, abs=1)


def test_a_training_shorter_than_an_epoch_measures_an_evaluation_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation of all 20 held-out images takes 6 s; their trial as long, counted 1.1 times."""
    simulated = Simulated(evaluation=6.0)
    run = simulated.fit(short(minutes=0.75, schedule={"name": f"{__name__}:Linear"}), tmp_path, monkeypatch)
    assert len(run.history()) == 1
    first, last = simulated.evaluated_after
    assert simulated.shares[first - 1] < 0.5 < simulated.shares[last - 1]
    assert 45 - 2 <= simulated.seconds <= 45 + 1
    assert simulated.shares[-1] > 0.9


def test_a_resumed_training_has_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, first = short(minutes=2, schedule={"name": f"{__name__}:Linear"}), Simulated(killed_at=75)
    with pytest.raises(KilledError):
        first.fit(recipe, tmp_path, monkeypatch)
    assert first.evaluated_after == [50]
    second = Simulated(lambda _: 2.0)
    run = second.fit(recipe, tmp_path, monkeypatch)
    assert second.seconds == pytest.approx(120 - 70, abs=2)  # the last checkpoint was after 70 batches
    assert second.shares[0] == pytest.approx(first.shares[70])
    assert second.shares[-1] > 0.95
    assert second.said[-1] == "planned 0:02:00, took 0:02:00 (1.00x)"
    assert [row["epoch"] for row in run.history()] == [1, 2]
    third = Simulated()
    third.fit(recipe, tmp_path, monkeypatch)  # it is finished
    assert (third.shares, third.said) == ([], [])


def test_a_training_is_planned_after_its_first_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batches take 1 s, so two epochs take 100 s; but those from the 50th on take 2 s."""
    simulated = Simulated(lambda k: 1.0 if k < 50 else 2.0)
    simulated.fit(short(epochs=2), tmp_path, monkeypatch)
    assert simulated.said[-1] == "planned 0:01:40, took 0:02:30 (1.50x)"


@pytest.mark.parametrize(
    ("settings", "threat", "forward", "backward"),
    [
        ({"name": "pgd", "steps": 7}, "linf:0.3", 9, 7),  # the point itself, 7 steps, the last point
        ({"name": "pgd", "steps": 7, "restarts": 3}, "l2:0.5", 25, 21),
        ({"name": "fgsm"}, "linf:0.3", 3, 1),
    ],
)
def test_the_passes_of_an_attack_are_those_of_an_image_that_withstands_it(
    settings: dict[str, Any], threat: str, forward: int, backward: int
) -> None:
    passes = passes_per_image(make_attack(settings), Threat.parse(threat))
    assert (passes.forward, passes.backward, passes.to_weights) == (forward, backward, 0)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), 1e9, "soon"])
def test_a_budget_that_is_no_time_is_refused_in_one_line(minutes: object) -> None:
    with pytest.raises(UserError, match=r"minutes = .*: input should be") as error:
        tiny(minutes=minutes)
    assert "\n" not in str(error.value)


def test_more_epochs_of_a_training_with_a_budget_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--more-epochs 3 with minutes = 2"):
        extend(Run(tmp_path), tiny(minutes=2), 3)


def test_recoveries_are_on_with_a_budget_and_off_without() -> None:
    assert (tiny().recoveries, tiny(minutes=1).recoveries, tiny(minutes=1, recoveries=0).recoveries) == (0, 2, 0)
