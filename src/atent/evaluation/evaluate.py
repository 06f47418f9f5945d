"""Evaluate a network in one call: attacks on images in hand, checks, a result that prints as one line."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from atent.attacks import ATTACKS, Attack
from atent.attacks.protocols import title_of
from atent.data.given import InHand
from atent.errors import UserError
from atent.evaluation.attack import attack_target
from atent.evaluation.checks import check_network, check_range
from atent.evaluation.estimate import Estimated, estimate_target, make_goal
from atent.evaluation.in_hand import (
    check_answers,
    check_counts,
    device_of,
    in_hand,
    read_files,
    rows_folder,
    save_files,
    threat_of,
)
from atent.evaluation.sampling import Goal
from atent.evaluation.suites import Choice, choose_attacks
from atent.evaluation.target import Target
from atent.methods import readable
from atent.report.html import html_table
from atent.report.tables import worst_case
from atent.report.verdict import verdict
from atent.storage.row_file import RowFile
from atent.storage.row_format import Content, Cost
from atent.storage.rows import ATTACK, Rate, Row, clean_rate
from atent.storage.samples import SAMPLE
from atent.threat import Threat


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The accuracy of a network without attack and in the worst case over attacks. It prints as one line.

    Attributes:
        name: The suite or the attack.
        threat: As it was given.
        images: The number of images.
        clean: The share of images that are classified correctly, in [0, 1].
        clean_interval: Its 95 % interval.
        robust: The share of images that are classified correctly under every attack.
        robust_interval: Its 95 % interval.
        rows: A row for each attacked image, by the title of the attack.
        warnings: The signs that the attacks failed, a sentence each; None if the checks were not run.
        passes: The images that the attacks passed forward and backward through the network, and the seconds. The
            checks are not counted.
        sampled: With `within`, the number of images that the expensive attacks attacked.
        files: The files of rows, by their path in a run folder.
    """

    name: str
    threat: str
    images: int
    clean: float
    clean_interval: tuple[float, float]
    robust: float
    robust_interval: tuple[float, float]
    rows: Mapping[str, Sequence[Row]]
    warnings: tuple[str, ...] | None
    passes: Cost
    sampled: int | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        robust = (self.robust, *self.robust_interval)
        return verdict(self.name, self.threat, self.images, robust, self.clean, self.warnings, sampled=self.sampled)

    def _repr_html_(self) -> str:
        lines = [
            [title, f"{len(rows):,}", f"{sum(row['robust'] for row in rows):,}"] for title, rows in self.rows.items()
        ]
        columns = ["attack", "images", "still classified correctly"]
        return html_table(repr(self), columns, lines, self.warnings or ())

    def save(self, folder: Path | str) -> Path:
        """Write the rows into a run folder, which `atent show` reads."""
        return save_files(self.files, folder)


@readable
def evaluate(
    model: nn.Module,
    x: InHand | str,
    y: Any = None,
    threat: Threat | str | None = None,
    *,
    suite: str | None = None,
    attack: Attack | str | None = None,
    examples: int | None = None,
    within: float | None = None,
    checks: bool = True,
    seed: int = 0,
    batch: int | None = None,
    data_dir: Path | str | None = None,
    out: Path | str | None = None,
) -> Evaluation:
    """Attack a network and check that the attacks did not fail.

    The network is evaluated in eval mode on its own device, and is unchanged afterwards. Outputs with a field `logits`
    are unwrapped.

        result = atent.evaluate(model, x, y, "linf:8/255", suite="strong")
        print(result, result.robust, result.robust_interval)

    Args:
        model: A network that takes pixels in [0, 1] and returns logits.
        x: Images as a tensor (n, channels, height, width), floats in [0, 1] or bytes; a Dataset or a DataLoader of
            pairs (image, label); or the name or path of a data set, whose test images are taken.
        y: The labels of a tensor, whole numbers from 0.
        threat: `linf:8/255`, `l2:0.5`, or a `Threat`.
        suite: `quick` (default), `strong` or `paper`.
        attack: One attack instead of a suite: an object such as `atent.Pgd(steps=40)`, or a name.
        examples: The first so many images. Default: all.
        within: Estimate the accuracy of all images to so many points: the expensive attacks attack a random sample.
        checks: Whether to look for signs that the attacks failed.
        seed: Of the attacks, and of the sample.
        batch: Images that are attacked at once. Default: 250, and 50 in a sample.
        data_dir: The folder of a data set that is given by name.
        out: A run folder for the rows. The same call then resumes after an interruption. Default: rows are in memory.
    """
    check_counts(batch=batch)
    ball, choice = threat_of(y, threat), _choice(suite, attack)
    if out is not None and attack is not None and not isinstance(attack, str):
        _check_recorded(attack, out)
    goal = make_goal(within, None, examples=examples)
    shown = threat if isinstance(threat, str) else str(ball)
    with rows_folder(out) as folder, in_hand(model, x, y, examples=examples, data_dir=data_dir) as target:
        device = device_of(model)
        options: dict[str, Any] = {"seed": seed, "batch": batch, "device": device}
        if goal:
            found = _sampled(target, choice, ball, goal, folder, options)
        else:
            found = _attacked(target, choice, ball, folder, options)
        signs = None
        if checks:
            doubts = check_range(target.network, target.images, device)
            signs = (*doubts, *check_network(target.network, target.images, ball, seed=seed, device=device))
        return Evaluation(threat=shown, images=len(target.images), warnings=signs, **found)


def _choice(suite: str | None, attack: Attack | str | None) -> Choice:
    if attack is None:
        return choose_attacks(None, [], suite or "quick")
    if suite is not None:
        raise UserError(f"suite {suite!r} with attack {attack!r}; allowed: one of them")
    if isinstance(attack, str):
        return choose_attacks(attack, [], None)
    ours = (name for name, made in ATTACKS.items() if made is type(attack))
    source = attack if inspect.isfunction(attack) else type(attack)
    name = next(ours, f"{source.__module__}:{source.__qualname__}")
    if not callable(attack) or isinstance(attack, type):
        raise UserError(f"attack {attack!r}; allowed: a name, or an object such as atent.Pgd(steps=40)")
    return Choice(None, {"name": name}, attack)


def _check_recorded(attack: Attack, out: Path | str) -> None:
    """Refuse to keep rows of an attack whose fields are not known: others of its class would have the same file."""
    if not is_dataclass(attack) and not isinstance(getattr(attack, "settings", None), Mapping):
        title = title_of(attack, getattr(attack, "__name__", ""))
        raise UserError(
            f"attack {title} with out={str(out)!r}: its fields are not known, so its rows could not be told from those "
            "of another one; allowed with out: a dataclass"
        )


def _attacked(
    target: Target, choice: Choice, threat: Threat, folder: Path, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of an `Evaluation` in which every attack attacks all images."""
    plan = choice.plan(target, [threat])
    paths = [attack_target(target, one, folder, **options) for one in plan]
    found = [RowFile(ATTACK, path).read() for path in paths]
    check_answers(target, found[0].rows, folder)
    name = choice.suite or plan[0].title
    worst = worst_case(one.rows for one in found)
    return {"name": name, **_accuracies(found[0].rows, worst), **_kept(found), "files": read_files(paths, folder)}


def _sampled(
    target: Target, choice: Choice, threat: Threat, goal: Goal, folder: Path, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of an `Evaluation` whose expensive attacks attack a sample."""
    (phases,) = choice.phases(target, [threat])
    seed, device = options["seed"], options["device"]
    first = attack_target(target, phases.first, folder, seed=seed, device=device)
    estimated: Estimated = estimate_target(target, phases, goal, folder, **options)
    sample = cast(Path, estimated.path)
    found, paths = [RowFile(ATTACK, first).read(), RowFile(SAMPLE, sample).read()], [first, sample]
    check_answers(target, found[0].rows, folder)
    robust = Rate(*(percent / 100 for percent in estimated.estimate))
    files = {"files": read_files(paths, folder), "sampled": estimated.drawn}
    return {"name": phases.name, **_accuracies(found[0].rows, robust), **_kept(found), **files}


def _accuracies(rows: Sequence[Row], robust: Rate) -> dict[str, Any]:
    clean = clean_rate(rows)
    return {
        "clean": clean.value,
        "clean_interval": (clean.low, clean.high),
        "robust": robust.value,
        "robust_interval": (robust.low, robust.high),
    }


def _kept(found: Sequence[Content[Row]]) -> dict[str, Any]:
    costs = zip(*(one.cost for one in found), strict=True)
    rows = {str(one.header["label"]): one.rows for one in found}
    return {"rows": rows, "passes": Cost(*map(sum, costs))}
