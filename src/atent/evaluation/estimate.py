"""The accuracy of a whole test set, from two phases: a cheap attack on all images, expensive ones on a sample.

The survivors of the first phase are known. The second phase attacks survivors in random order until the interval of
the accuracy, the worst case of both phases, is narrow enough (`evaluation.sampling` has the law).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from atent.errors import UserError
from atent.evaluation.attack import attack_batch, attack_target
from atent.evaluation.sampling import Estimate, Goal, Law, draw_order
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.network import borrowed, repeat
from atent.progress import detail, expect
from atent.storage.record import Batches, record
from atent.storage.row_file import RowFile, finished_files, leave_out
from atent.storage.row_format import Content, Cost
from atent.storage.rows import ATTACK, Row
from atent.storage.samples import SAMPLE

DRAWN = 50  # images per batch of the sample


class Phases(NamedTuple):
    """What is estimated: the worst case of two attacks against one threat, under the name of a suite or an attack."""

    name: str
    first: Planned
    second: Planned


class Estimated(NamedTuple):
    """An estimate for the whole test set, and what it is made of."""

    name: str
    data: str
    threat: str
    whole: int
    survivors: int
    drawn: int
    estimate: Estimate
    confidence: float
    cost: Cost

    def __str__(self) -> str:
        """The verdict in one line."""
        return (
            f"{self.name}, {self.threat}, whole test set  {self.estimate}  "
            f"({self.whole:,} + {self.drawn:,} images, {100 * self.confidence:g} % confidence)"
        )


def estimate_target(
    target: Target,
    phases: Phases,
    goal: Goal,
    folder: Path,
    *,
    seed: int = 0,
    batch: int = 250,
    drawn: int = DRAWN,
    device: torch.device | str = "cpu",
) -> Estimated:
    """Attack until the goal is reached, or all survivors are attacked. Rows are kept; a smaller `within` adds more."""
    check_deterministic(target, device)
    threat, name = phases.second.threat, phases.name
    path = attack_target(target, phases.first, folder, seed=seed, batch=batch, device=device)
    first = RowFile(ATTACK, path).read()
    order = draw_order([row["index"] for row in first.rows if row["robust"]], seed)
    if not order:
        return _exact(name, first, str(threat), goal.confidence)
    law = Law(len(order), drawn, goal.confidence)
    settings = {
        "label": name,
        "attack": phases.second.settings,
        "first": phases.first.settings,
        "threat": f"{threat.norm}:{threat.eps!r}",
        "batch": drawn,
        "confidence": goal.confidence,
        "whole": len(target.images),
        "order": order,
    }

    def work(path: Path, done: int) -> Batches:
        rows = list(RowFile(SAMPLE, path).read().rows) if done else []
        while not _is_reached(law, rows, goal, len(target.images)):
            part = order[len(rows) : len(rows) + drawn]
            found = attack_batch(target.network, target.images, part, phases.second.attack, threat, seed=seed)
            rows += found.rows
            yield found.rows, found.cost

    header = {**target.header(settings, seed), "examples": len(order)}
    record(SAMPLE, folder, header, f"{name} {threat}, sample", work)
    return estimates(folder)[0]
