"""What is there: trainings with the same recipe, and the accuracy that finished rows give for a measure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atent.attacks import make_attack
from atent.errors import UserError
from atent.evaluation.estimate import DRAWN, USUAL, estimates
from atent.evaluation.sampling import Goal, Law
from atent.evaluation.suites import FIRST
from atent.methods import completed, written_out
from atent.recipe import Recipe, recipe_of
from atent.reproduce.networks import size_of
from atent.reproduce.plan import Measure
from atent.storage.certificates import certified
from atent.storage.row_file import finished_files
from atent.storage.row_format import Content
from atent.storage.rows import ATTACK, Rate, Row, clean_rate, robust_rate
from atent.storage.run import Run
from atent.threat import Threat


class Number(NamedTuple):
    """An accuracy in percent with its 95 % interval, and the number of images."""

    value: float
    low: float
    high: float
    images: int

    def __str__(self) -> str:
        """With ends of one digit; one that rounding would move past the value is rounded outwards."""
        low = min(round(self.low, 1), math.floor(round(10 * self.value, 1)) / 10)
        high = max(round(self.high, 1), math.ceil(round(10 * self.value, 1)) / 10)
        return f"{self.value:.2f} [{low:.1f}, {high:.1f}]"


def number(measure: Measure, recipe: Recipe, folders: Sequence[Path]) -> Number | None:
    """The accuracy that the rows in these folders give; None if they are not finished or not there."""
    if measure.kind == "clean":
        largest = max(_attacks(folders), key=lambda found: len(found.rows), default=None)
        return largest and _number(clean_rate(largest.rows), len(largest.rows))
    if measure.kind == "certified":
        return _certified(measure, folders)
    threat = Threat.parse(measure.threat or recipe.threat)
    images = measure.images or size_of(recipe).test
    if measure.kind == "strong":
        return _estimated(measure.within, threat, images, folders)
    rows = _rows(dict(measure.attack), threat, images, folders)
    return _number(robust_rate(rows), len(rows)) if rows else None


def _number(found: Rate, images: int) -> Number:
    return Number(100 * found.value, 100 * found.low, 100 * found.high, images)


def _attacks(folders: Iterable[Path]) -> Iterator[Content[Row]]:
    for folder in folders:
        for _, found in finished_files(ATTACK, folder, lambda _: None):
            yield found


def _rows(settings: dict[str, Any], threat: Threat, images: int, folders: Sequence[Path]) -> list[Row]:
    """The rows of an attack with these settings on so many images; none if they are not there."""
    attack = make_attack(settings)
    ours = written_out(settings, attack)
    fitting = (
        found.rows
        for found in _attacks(folders)
        if len(found.rows) == images
        and completed(found.header.get("attack", {}), ours, attack) == _as_read(ours)
        and Threat.parse(found.header["threat"]) == threat
    )
    return next(fitting, [])


def _as_read(value: Any) -> Any:
    """Settings as they are in a file: tuples become lists."""
    if isinstance(value, dict):
        return {key: _as_read(inside) for key, inside in value.items()}
    return [_as_read(inside) for inside in value] if isinstance(value, list | tuple) else value


def _estimated(within: float, threat: Threat, images: int, folders: Sequence[Path]) -> Number | None:
    """The estimate by `strong`. Where the first phase settles it there is no sample, and its rows give the interval."""
    first = _rows({"name": "cascade", "attacks": [FIRST]}, threat, images, folders)
    if not first:
        return None
    goal, survivors = Goal(within), sum(row["robust"] for row in first)
    found = [Law(len(first), survivors, DRAWN, USUAL).estimate([])]
    found += [
        one.estimate
        for folder in folders
        for one in estimates(folder, lambda _: None)
        if (one.name, one.threat, one.whole) == ("strong", str(threat), len(first))
    ]
    best = min(found, key=lambda estimate: estimate.half_width)
    return Number(*best, len(first)) if goal.reached(best) or not survivors else None


def _certified(measure: Measure, folders: Sequence[Path]) -> Number | None:
    for folder in folders:
        for one in certified(folder, lambda _: None):
            same = all(one.header[key] == value for key, value in measure.attack.items())
            radii = {name: radius for radius, name in one.radii}
            wanted = str(Threat.parse(measure.covers))
            if same and len(one.rows) == measure.images and wanted in radii:
                return _number(one.accuracy(radii[wanted] if measure.threat else 0.0), len(one.rows))
    return None


def is_trained(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder has a finished training of this recipe, with or without its weights."""
    run = Run(folder)
    if not run.recipe_file.exists() or not same_recipe(recipe, folder):
        return False
    history = run.history()
    return len(history) >= recipe.epochs or bool(history and history[-1].get("collapsed"))


def same_recipe(recipe: Recipe, folder: Path) -> bool:
    """Whether the run in the folder has this recipe. Of data and weights in folders of ours, the name counts."""
    theirs = recipe_of(Run(folder))
    moved = {
        key: getattr(recipe, key)
        for key in ("data", "weights")
        if Path(getattr(theirs, key) or "").name == Path(getattr(recipe, key) or "").name
    }
    try:
        recipe.check_same(theirs.model_copy(update=moved), folder)
    except UserError:
        return False
    return True
