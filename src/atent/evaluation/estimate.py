"""The accuracy of a whole test set in two phases: a cheap attack on all images, an expensive one on a random sample.

The survivors of the first phase are known. The second phase attacks them in random order until the interval of the
accuracy, the worst case of both phases, is narrow enough. `evaluation.sampling` has the law of the interval.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from atent.errors import Interrupted, UserError
from atent.evaluation.attack import attack_batch, attack_target
from atent.evaluation.sampling import Estimate, Goal, Law
from atent.evaluation.suites import Phases
from atent.evaluation.target import Target
from atent.network import borrowed, repeat
from atent.progress import detail, expect
from atent.randomness import derive_seed
from atent.smoothing.smoothed import Smoothed
from atent.storage.record import Batches, record
from atent.storage.row_file import RowFile, finished_files, leave_out, warn
from atent.storage.row_format import Content, Cost
from atent.storage.rows import ATTACK, Row
from atent.storage.samples import SAMPLE
from atent.threat import Threat

DRAWN = 50  # images in a batch of the sample; the interval is computed after some of the batches


class Estimated(NamedTuple):
    """The accuracy of the whole test set under the suite or attack `name`, and what the estimate is made of."""

    run: str
    name: str
    data: str
    threat: str
    whole: int
    survivors: int
    drawn: int
    broken: int
    confidence: float
    estimate: Estimate
    cost: Cost

    def __str__(self) -> str:
        """The verdict in one line."""
        value, low, high = self.estimate
        sizes = f"({self.whole:,} + {self.drawn:,} images)"
        return f"{self.name}, {self.threat}, whole test set  {value:.2f} [{low:.2f}, {high:.2f}]  {sizes}"


def estimate_target(
    target: Target,
    phases: Phases,
    goal: Goal,
    folder: Path,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    batch: int | None = None,
    device: torch.device | str = "cpu",
) -> Estimated:
    """Attack survivors until the goal is reached; one row per image in `folder`/sample. A later goal adds rows.

    Attacks draw from a generator of each image, or, in other libraries, of each batch of the sample.
    """
    check_steady(target, device)
    drawn = batch or DRAWN
    threat = phases.second.threat
    path = attack_target(target, phases.first, folder, seed=seed, batch=batch, device=device)
    survivors = [row["index"] for row in RowFile(ATTACK, path).read().rows if row["robust"]]
    whole = len(target.images)
    if not survivors:
        none = Estimate(0.0, 0.0, 0.0)
        return Estimated(folder.name, phases.name, target.data, str(threat), whole, 0, 0, 0, confidence, none, Cost())
    law = Law(whole, len(survivors), drawn, confidence)
    if goal.within is not None and (least := law.expected_draws(Goal(goal.within))) > 0.9 * len(survivors):
        share = "all" if least == len(survivors) else f"at least {least:,} of"
        warn(f"--within {goal.within:g}: {share} the {len(survivors):,} survivors will be attacked")
    order = draw_order(survivors, seed)
    settings = {
        "label": phases.name,
        "attack": phases.second.settings,
        "first": phases.first.settings,
        "threat": f"{threat.norm}:{threat.eps!r}",
        "batch": drawn,
        "confidence": confidence,
        "whole": whole,
        "order": order,
    }

    def work(path: Path, done: int) -> Batches:
        rows = list(RowFile(SAMPLE, path).read().rows) if done else []
        while not goal.reached(estimate := law.estimate(broken_at(law, rows))) and len(rows) < len(order):
            expect(law.expected_draws(goal, broken_share(rows)))
            detail(f"so far {estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]")
            part = order[len(rows) : len(rows) + drawn]
            found = attack_batch(
                target.network, target.images, part, phases.second.attack, threat, seed=seed, device=device
            )
            rows += found.rows
            yield found.rows, found.cost

    header = {**target.header(settings, seed), "examples": len(order)}
    try:
        path = record(SAMPLE, folder, header, f"{phases.name} {threat}, sample", work)
    except Interrupted:
        warn(str(read_estimate(RowFile.of(SAMPLE, folder, header).path)))
        raise
    return read_estimate(path)


def make_goal(
    within: float | None, claim: float | None, confidence: float, others: Mapping[str, bool] | None = None
) -> Goal | None:
    """When to stop sampling; None: attack all images. The `others` are options that do not go with a sample."""
    if within is None and claim is None:
        return None
    goal = Goal(within, claim)
    Law(1, 1, 1, confidence)  # refuses what is no probability, before any work
    for option, given in (others or {}).items():
        if given:
            raise UserError(
                f"{option} with --within or --claim, which attack a sample of the whole test set; leave one out"
            )
    return goal


def draw_order(survivors: Sequence[int], seed: int) -> list[int]:
    """The survivors in random order. Each image has its own random key, so two images never change places."""
    return sorted(survivors, key=lambda index: derive_seed(seed, "sample", index))


def broken_share(rows: Sequence[Row]) -> float:
    return sum(not row["robust"] for row in rows) / max(len(rows), 1)


def broken_at(law: Law, rows: Sequence[Row]) -> list[int]:
    """How many images were broken at each look so far."""
    return [sum(not row["robust"] for row in rows[:draws]) for draws in law.looks if draws <= len(rows)]


def check_steady(target: Target, device: torch.device | str = "cpu") -> None:
    """Refuse a network that answers randomly: an image must have one verdict, whoever else is drawn."""
    x, _ = target.images.batch(slice(16), device)
    with borrowed(target.network):
        if isinstance(target.network, Smoothed) or repeat(target.network, x).random:
            raise UserError(
                "two passes over the same images differ: the network is randomized or smoothed, so an image has no "
                "fixed verdict; attack all images, without --within and --claim"
            )


def estimates(folder: Path, say: Callable[[str], None] = leave_out) -> list[Estimated]:
    """Every estimate of a run folder. A damaged file is left out and reported to `say`."""
    return [_estimated(path, found) for path, found in finished_files(SAMPLE, folder, say)]


def read_estimate(path: Path) -> Estimated:
    return _estimated(path, RowFile(SAMPLE, path).read())


def _estimated(path: Path, found: Content[Row]) -> Estimated:
    header, rows = found.header, found.rows
    law = Law(header["whole"], len(header["order"]), header["batch"], header["confidence"])
    broken = broken_at(law, rows)
    return Estimated(
        run=path.resolve().parent.parent.name,
        name=header["label"],
        data=header["data"],
        threat=str(Threat.parse(header["threat"])),
        whole=law.images,
        survivors=law.survivors,
        drawn=len(rows),
        broken=sum(not row["robust"] for row in rows),
        confidence=law.confidence,
        estimate=law.estimate(broken),
        cost=found.cost,
    )
