"""The accuracy of a whole test set from two phases, on grey images whose distance to the boundary is known."""

import json
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Apgd, Attack, Cascade, Square
from atent.data.images import Images
from atent.errors import Interrupted, UserError
from atent.evaluation import estimate
from atent.evaluation.attack import Attacked, attack_batch, attack_target
from atent.evaluation.estimate import Estimated, estimate_target, estimates
from atent.evaluation.sampling import Goal
from atent.evaluation.suites import Phases, Planned, choose_attacks
from atent.evaluation.target import Target, in_precision
from atent.randomness import derive
from atent.report.records import records
from atent.smoothing.smoothed import Smoothed
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK, Row
from atent.storage.samples import SAMPLE
from atent.threat import Threat
from toys import small_batch, small_network, two_class_linear

THREAT = Threat("linf", 0.1)
COUNT, WEAK, STRONG = 400, 0.02, 0.05
# Distances to the boundary: 40 images within the weak attack's reach, 72 more within the strong one's.
DISTANCES = torch.linspace(0.00025, 0.19975, COUNT)
ROBUST = 100 * float((DISTANCES > STRONG).float().mean())


def distances() -> list[float]:
    """The distance of each image, in the order of the images."""
    order = torch.randperm(COUNT, generator=derive(0, "order"))
    found: list[float] = DISTANCES[order].tolist()
    return found


def target() -> Target:
    grey = 0.5 + torch.tensor(distances())
    x = grey.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    images = Images(x, torch.ones(COUNT).long(), ("dark", "light"))
    network = two_class_linear(torch.full((16,), 0.25), bias=-2.0)
    return Target(network, "abc", "toy", images, "toy", "linf:0.1", Path("never"))


@dataclass(frozen=True)
class Darken:
    """Breaks the images whose distance to the boundary is smaller than `by`."""

    by: float

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        del model, y, threat, generator
        return x - self.by


def phases(second: Attack | None = None) -> Phases:
    first, last = (
        Planned.of(attack, {"name": name}, THREAT)
        for name, attack in (("weak", Darken(WEAK)), ("strong", second or Darken(STRONG)))
    )
    return Phases("mine", first, last)


def run(folder: Path, goal: Goal, batch: int = 20) -> Estimated:
    return estimate_target(target(), phases(), goal, folder, batch=batch)


def sample_rows(folder: Path) -> list[Row]:
    (path,) = (folder / "sample").glob("*.jsonl")
    return RowFile(SAMPLE, path).read().rows


def drawn_rows(folder: Path) -> list[int]:
    return [row["index"] for row in sample_rows(folder)]


def test_an_estimate_holds_the_truth_and_stops_before_all_are_attacked(tmp_path: Path) -> None:
    found = run(tmp_path, Goal(within=6))
    assert found.estimate.low <= ROBUST <= found.estimate.high
    assert found.estimate.half_width <= 6
    assert found.drawn < found.survivors == int((DISTANCES > WEAK).sum())
    assert found.whole == COUNT


def test_when_all_survivors_are_attacked_the_estimate_is_exact(tmp_path: Path) -> None:
    found = run(tmp_path, Goal(within=1e-9))
    assert found.estimate == pytest.approx((ROBUST, ROBUST, ROBUST))
    assert found.drawn == found.survivors
    assert sorted(drawn_rows(tmp_path)) == [k for k, distance in enumerate(distances()) if distance > WEAK]


def test_a_smaller_within_continues_the_same_sample(tmp_path: Path) -> None:
    run(tmp_path / "twice", Goal(within=8))
    first = drawn_rows(tmp_path / "twice")
    twice, once = run(tmp_path / "twice", Goal(within=5)), run(tmp_path / "once", Goal(within=5))
    assert twice.estimate == once.estimate
    assert len(first) < len(drawn_rows(tmp_path / "twice"))
    assert drawn_rows(tmp_path / "twice") == drawn_rows(tmp_path / "once")
    assert drawn_rows(tmp_path / "once")[: len(first)] == first


def test_another_seed_draws_another_order(tmp_path: Path) -> None:
    orders = []
    for seed in (0, 1):
        estimate_target(target(), phases(), Goal(within=8), tmp_path / str(seed), seed=seed, batch=20)
        orders.append(drawn_rows(tmp_path / str(seed)))
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("claim", "outcome"), [(50.0, "accepted"), (90.0, "refuted")])
def test_a_claim_ends_the_run_when_it_is_settled(claim: float, outcome: str, tmp_path: Path) -> None:
    goal = Goal(claim=claim)
    found = run(tmp_path, goal)
    assert goal.reached(found.estimate) == outcome
    assert found.drawn < found.survivors


def test_an_interrupted_sample_is_resumed_and_gives_the_same_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole", Goal(within=5))

    def interrupted(*arguments: Any, **options: Any) -> Attacked:
        signal.raise_signal(signal.SIGINT)
        return attack_batch(*arguments, **options)

    monkeypatch.setattr(estimate, "attack_batch", interrupted)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", Goal(within=5))
    assert re.search(r"mine, linf:0.1, whole test set \d+\.\d\d \[", capsys.readouterr().err)
    assert len(drawn_rows(tmp_path / "cut")) == 20
    monkeypatch.undo()
    assert run(tmp_path / "cut", Goal(within=5)).estimate == whole.estimate
    assert drawn_rows(tmp_path / "cut") == drawn_rows(tmp_path / "whole")


def test_fewer_survivors_than_a_batch_are_all_attacked(tmp_path: Path) -> None:
    found = run(tmp_path, Goal(within=1), batch=1000)
    assert found.drawn == found.survivors
    assert found.estimate.half_width == 0


def test_no_survivors_leave_nothing_to_sample(tmp_path: Path) -> None:
    all_broken = phases()._replace(first=Planned.of(Darken(0.3), {"name": "all"}, Threat("linf", 0.3)))
    found = estimate_target(target(), all_broken, Goal(within=1), tmp_path)
    assert (found.drawn, found.estimate) == (0, (0.0, 0.0, 0.0))


@pytest.mark.parametrize("goal", [Goal(claim=95), Goal(within=60)])
def test_a_goal_that_the_first_phase_reaches_needs_no_sample(goal: Goal, tmp_path: Path) -> None:
    """The first phase leaves 90 %."""
    found = run(tmp_path, goal)
    assert goal.reached(found.estimate)
    assert found.drawn == 0
    assert estimates(tmp_path) == [found._replace(first_cost=None)]  # `show` has it, too


def test_a_reached_sample_stays_whichever_version_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, Goal(within=6))
    (path,) = (tmp_path / "sample").glob("*.jsonl")
    before = path.read_bytes()
    monkeypatch.setattr("atent.evaluation.target.__version__", "9.9")
    assert run(tmp_path, Goal(within=6)).estimate == found.estimate
    assert path.read_bytes() == before


def test_another_confidence_uses_the_same_rows(tmp_path: Path) -> None:
    usual = run(tmp_path, Goal(within=6))
    rows = drawn_rows(tmp_path)
    surer = estimate_target(target(), phases(), Goal(within=30), tmp_path, confidence=0.999, batch=20)
    assert drawn_rows(tmp_path) == rows
    assert surer.estimate.half_width > usual.estimate.half_width
    assert " at 99.9 %" in str(surer)
    assert " at " not in str(usual)


def test_in_two_phases_every_image_has_its_verdict_of_the_whole_suite(tmp_path: Path) -> None:
    model, (x, _) = small_network(classes=4, dropout=0).eval(), small_batch(60, 4)
    images = Images(x, model(x).argmax(1), tuple("abcd"))
    subject = Target(model, "abc", "toy", images, "toy", None, Path("never"))
    weak, strong = Threat("linf", 0.04), choose_attacks(None, [], "strong")
    (all_at_once,) = strong.plan(subject, [weak])
    (in_phases,) = strong.phases(subject, [weak])
    short: list[Attack] = [
        Apgd(steps=3),
        Apgd(steps=5),
        Apgd(steps=4, loss="dlr-targeted", targets=2),
        Square(queries=10),
    ]
    whole = all_at_once._replace(attack=Cascade(tuple(short)))
    halves = in_phases._replace(
        first=in_phases.first._replace(attack=Cascade((short[0],))),
        second=in_phases.second._replace(attack=Cascade(tuple(short[1:]))),
    )
    rows = RowFile(ATTACK, attack_target(subject, whole, tmp_path / "whole", batch=60)).read().rows
    found = estimate_target(subject, halves, Goal(within=1e-9), tmp_path / "halves", batch=7)
    assert 5 < sum(row["robust"] for row in rows) < 55
    assert len({row["by"] for row in rows}) > 2
    assert found.estimate.value == pytest.approx(100 * sum(row["robust"] for row in rows) / 60)
    sampled = {row["index"]: row["robust"] for row in sample_rows(tmp_path / "halves")}
    assert sampled == {row["index"]: row["robust"] for row in rows if row["index"] in sampled}


def test_a_within_that_needs_all_survivors_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, Goal(within=0.01))
    assert "--within 0.01: all the 360 survivors will be attacked" in capsys.readouterr().err


@pytest.mark.parametrize("noisy", ["smoothed", "dropout"])
def test_a_randomized_network_is_refused(noisy: str, tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(target().network(x), 0.5, training=True)

    network = Smoothed(target().network, 0.1) if noisy == "smoothed" else Dropping()
    with pytest.raises(UserError, match="randomized or smoothed"):
        estimate_target(replace(target(), network=network), phases(), Goal(within=1), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_file_gives_the_estimate_again(tmp_path: Path) -> None:
    found = run(tmp_path / "run", Goal(within=6))
    assert estimates(tmp_path / "run") == [found._replace(first_cost=None)]
    header = json.loads(next((tmp_path / "run" / "sample").glob("*.jsonl")).read_text().splitlines()[0])
    assert {"order", "seed", "confidence", "first", "attack"} <= set(header)


def test_an_estimate_in_half_precision_is_named(tmp_path: Path) -> None:
    estimate_target(in_precision(target(), "bf16"), phases(), Goal(within=6), tmp_path / "run", batch=20)
    (found,) = estimates(tmp_path / "run")
    assert found.run == "run, bf16"
    (record,) = records([], [found], [], [])
    assert (record["network"], record["variant"]) == ("run, bf16", "bf16")
