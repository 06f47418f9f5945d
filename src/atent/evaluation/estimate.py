"""The accuracy of a whole test set in two phases: a cheap attack on all images, an expensive one on a random sample.

The survivors of the first phase are known. The second phase attacks them in random order until the interval of the
accuracy, the worst case of both phases, is narrow enough. `evaluation.sampling` has the law of the interval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from atent.errors import Interrupted, UserError
from atent.evaluation.attack import attack_batch, attack_target
from atent.evaluation.sampling import Estimate, Goal, Law
from atent.evaluation.suites import Choice, Phases
from atent.evaluation.target import Target
from atent.network import borrowed, repeat
from atent.parallel.order import in_order, turns
from atent.parallel.team import current_team
from atent.progress import expect, say
from atent.randomness import derive_seed
from atent.smoothing.smoothed import Smoothed
from atent.storage.files import alone
from atent.storage.record import Batches, record
from atent.storage.row_file import RowFile, finished_files, leave_out
from atent.storage.row_format import Cost
from atent.storage.row_format import settings as row_settings
from atent.storage.rows import ATTACK, Row, variant_of
from atent.storage.samples import SAMPLE
from atent.threat import Threat

USUAL = 0.95  # confidence
DRAWN = 50  # images in a batch of the sample; the interval is computed after some of the batches


class Estimated(NamedTuple):
    """The accuracy of the whole test set under the suite or attack `name`, and what the estimate is made of.

    `drawn` and `broken` are the numbers at the last look. Of an estimate that is read from a file, the cost of the
    first phase is not known.
    """

    run: str
    weights: str
    name: str
    data: str
    threat: str
    confidence: float
    whole: int
    survivors: int
    drawn: int
    broken: int
    estimate: Estimate
    cost: Cost = Cost()
    first_cost: Cost | None = None
    path: Path | None = None  # of the rows of its sample
    seed: int = 0
    variant: str = ""  # of the network, also in the name of the run

    def __str__(self) -> str:
        """The verdict in one line."""
        value, low, high = self.estimate
        sizes = f"({self.whole:,} + {self.drawn:,} images)"
        return f"{self.name}, {self.threat}, whole test set {value:.2f} [{low:.2f}, {high:.2f}]{self.level} {sizes}"

    @property
    def level(self) -> str:
        """The confidence of the interval in words, if it is not the usual one."""
        return "" if self.confidence == USUAL else f" at {100 * self.confidence:.6g} %"


def estimate_target(
    target: Target,
    phases: Phases,
    goal: Goal,
    folder: Path,
    *,
    confidence: float | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: torch.device | str = "cpu",
) -> Estimated:
    """Attack survivors until the goal is reached; one row per image in `folder`/sample. A later goal adds rows.

    `batch` is that of the sample. A `PerImage` attack draws from a generator of each image, any other from one of each
    batch of the sample.
    """
    check_steady(target, device)
    drawn, threat = batch or DRAWN, phases.threat
    first = RowFile(ATTACK, attack_target(target, phases.first, folder, seed=seed, device=device)).read()
    order = draw_order([row["index"] for row in first.rows if row["robust"]], seed)
    law = Law(len(target.images), len(order), drawn, USUAL if confidence is None else confidence)
    settings = {
        "label": phases.name,
        "attack": phases.second.settings,
        "first": phases.first.settings,
        "threat": str(threat),
        "batch": drawn,
        "confidence": law.confidence,
        "whole": len(target.images),
        "order": order,
    }
    header = {**target.header(settings, seed), "examples": len(order)}
    file, team = RowFile.of(SAMPLE, folder, header), current_team()

    def estimated() -> Estimated:
        found = file.read()
        made = _estimated(folder.resolve().name, header, law, found.rows)
        return made._replace(cost=found.cost, first_cost=first.cost, path=file.path)

    if goal.reached(law.estimate([])) or not order:
        if team.leads:
            with alone(file.path):  # a result without rows, for `show`
                file.resume(header)
        team.wait()
        return estimated()

    def attacked(parts: Sequence[Sequence[int]]) -> Iterator[list[tuple[list[Row], Cost]]]:
        for part in parts:
            attack = phases.second.attack
            found = attack_batch(target.network, target.images, part, attack, threat, seed=seed, device=device)
            yield [(found.rows, found.cost)]

    def work(_: Path, done: int) -> Batches:
        rows = list(file.read().rows) if done else []
        parts = [order[k : k + drawn] for k in range(len(rows), len(order), drawn)]
        expect(law.expected_draws(goal, broken_share(rows)))
        for found, cost in chain.from_iterable(in_order(team, attacked(turns(team, parts)))):
            rows += found
            yield found, Cost(*cost)
            if len(rows) in law.looks:
                now = law.estimate(broken_at(law, rows))
                say(f"after {len(rows):,} images: {now.value:.2f} [{now.low:.2f}, {now.high:.2f}]")
                if goal.reached(now):
                    return
            expect(law.expected_draws(goal, broken_share(rows)))

    if _is_readable(file, header) and goal.reached(estimated().estimate):
        return estimated()
    if goal.within is not None and (least := law.expected_draws(Goal(goal.within))) > 0.9 * len(order):
        share = "all" if least == len(order) else f"at least {least:,} of"
        say(f"--within {goal.within:g}: {share} the {len(order):,} survivors will be attacked")
    try:
        record(SAMPLE, folder, header, f"{phases.name} {threat}, sample", work)
    except Interrupted:
        say(str(estimated()))
        raise
    return estimated()


def _is_readable(file: RowFile[Row], header: Mapping[str, Any]) -> bool:
    """Whether there are rows for these settings, written by any version of ours."""
    try:
        return file.path.exists() and row_settings(file.read().header) == row_settings(header)
    except UserError:
        return False


def make_goal(
    within: float | None, claim: float | None, confidence: float | None = None, **others: object
) -> Goal | None:
    """When to stop sampling; None: attack all images. The `others` are options that do not go with a sample."""
    if within is None and claim is None:
        if confidence is not None:
            raise UserError(f"--confidence {confidence:g} without --within and --claim; it is that of their interval")
        return None
    goal = Goal(within, claim)
    Law(1, 1, 1, USUAL if confidence is None else confidence)  # refuses what is no probability, before any work
    for option, given in others.items():
        if given:
            name = f"--{option.replace('_', '-')}"
            raise UserError(f"{name} with --within or --claim, which attack a sample of all images; leave one out")
    return goal


def draw_order(survivors: Sequence[int], seed: int) -> list[int]:
    """The survivors in random order. Each image has its own random key, so two images never change places."""
    return sorted(survivors, key=lambda index: derive_seed(seed, "sample", index))


def broken_share(rows: Sequence[Row]) -> float:
    return sum(not row["robust"] for row in rows) / max(len(rows), 1)


def broken_at(law: Law, rows: Sequence[Row]) -> list[int]:
    """How many images were broken at each look so far."""
    return [sum(not row["robust"] for row in rows[:draws]) for draws in law.looks if draws <= len(rows)]


def plan_phases(
    choice: Choice, target: Target, threats: Sequence[Threat], device: torch.device | str = "cpu"
) -> list[Phases]:
    """The two phases against every threat (default: the target's own), for a network that has fixed verdicts."""
    check_steady(target, device)
    return choice.phases(target, threats)


def check_steady(target: Target, device: torch.device | str = "cpu") -> None:
    """Refuse a network that answers randomly: an image must have one verdict, whoever else is drawn."""
    x, _ = target.images.batch(slice(16), device)
    with borrowed(target.network):
        if isinstance(target.network, Smoothed) or repeat(target.network, x).random:
            raise UserError(
                "two passes over the same images differ: the network is randomized or smoothed, so an image has no "
                "fixed verdict; attack all images, without --within and --claim"
            )


def estimates(
    folder: Path, report: Callable[[str], None] = leave_out, confidence: float | None = None
) -> list[Estimated]:
    """Every estimate of a run folder, at its own confidence or a given one, on which its rows do not depend.

    A damaged file is left out and passed to `report`.
    """
    found = []
    for path, content in finished_files(SAMPLE, folder, report):
        header = content.header
        law = Law(header["whole"], len(header["order"]), header["batch"], confidence or header["confidence"])
        run = path.resolve().parent.parent.name
        found.append(_estimated(run, header, law, content.rows)._replace(cost=content.cost, path=path))
    return found


def _estimated(run: str, header: Mapping[str, Any], law: Law, rows: Sequence[Row]) -> Estimated:
    broken, variant = broken_at(law, rows), variant_of(header)
    return Estimated(
        run=f"{run}{variant and f', {variant}'}",
        weights=header["weights"],
        name=header["label"],
        data=header["data"],
        threat=str(Threat.parse(header["threat"])),
        confidence=law.confidence,
        whole=law.images,
        survivors=law.survivors,
        drawn=law.looks[len(broken) - 1] if broken else 0,
        broken=broken[-1] if broken else 0,
        estimate=law.estimate(broken),
        variant=variant,
        seed=header.get("seed", 0),
    )
