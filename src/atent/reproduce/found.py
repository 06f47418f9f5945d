"""What is there: trainings with the same recipe, and the accuracy that finished rows give for a measure."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from atent.attacks import make_attack
from atent.errors import UserError
from atent.evaluation.estimate import DRAWN, USUAL, Estimated, estimates
from atent.evaluation.sampling import Goal, Law
from atent.evaluation.suites import FIRST
from atent.methods import completed, written_out
from atent.recipe import Recipe, recipe_of
from atent.reproduce.networks import size_of
from atent.reproduce.plan import Measure
from atent.smoothing.stopping import Smoothing
from atent.storage.certificates import Certified, certified
from atent.storage.row_file import finished_files
from atent.storage.row_format import Content
from atent.storage.rows import ATTACK, Rate, Row, clean_rate, robust_rate
from atent.storage.run import Run
from atent.threat import Threat


class Number(NamedTuple):
    """An accuracy in percent with its 95 % interval, and the number of images.

    Of an estimate, `drawn` images were attacked by all of `strong`, the others by its first attack alone.
    """

    value: float
    low: float
    high: float
    images: int
    drawn: int | None = None

    def __str__(self) -> str:
        return str(Rate(self.value / 100, self.low / 100, self.high / 100))

    @property
    def counted(self) -> str:
        """The number of images, and of an estimate that of the drawn ones."""
        return f"{self.images:,}" if self.drawn is None else f"{self.images:,} + {self.drawn:,}"


class Evidence(NamedTuple):
    """The rows of one network on its data, in float32, smoothed as its recipe says, with seed 0.

    `network` is the sha256 of its weights; None: that of the first rows in the folders. Rows of another network, such
    as the same training on another machine, do not count.
    """

    recipe: Recipe
    folders: Sequence[Path]
    network: str | None

    @classmethod
    def of(cls, recipe: Recipe, folders: Sequence[Path], network: str | None) -> "Evidence":
        first = (str(header["weights"]) for folder in folders for header in read_headers(folder))
        return cls(recipe, folders, network or next(first, None))

    def attacks(self) -> Iterator[Content[Row]]:
        for folder in self.folders:
            for found in read_attacks(folder):
                if self._has(found.header) and found.header.get("smooth", 0.0) == self.recipe.smooth:
                    yield found

    def estimates(self) -> Iterator[Estimated]:
        wanted = (self.network, _name(self.recipe.data), "", 0)
        for folder in self.folders:
            for one in estimates(folder, _silent, USUAL):
                if (one.weights, _name(one.data), one.variant, one.seed) == wanted:
                    yield one

    def certificates(self) -> Iterator[Certified]:
        return (one for folder in self.folders for one in certified(folder, _silent) if self._has(one.header))

    def _has(self, header: Mapping[str, Any]) -> bool:
        given = (header["weights"], _name(header["data"]), header.get("amp"), header.get("seed", 0))
        return given == (self.network, _name(self.recipe.data), None, 0)


def read_headers(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Those of the finished files of attacks and certificates in a run folder."""
    for found in read_attacks(folder):
        yield found.header
    for one in certified(folder, _silent):
        yield one.header


def read_attacks(folder: Path) -> Sequence[Content[Row]]:
    """The finished files of attacks in a run folder. They are parsed again only if one of them has changed."""
    states = ((path.name, path.stat()) for path in sorted((folder / ATTACK.folder).glob("*.jsonl")))
    return _parsed(folder, tuple((name, state.st_mtime_ns, state.st_size) for name, state in states))


@lru_cache(maxsize=8)  # folders: every measure of a row reads the same few
def _parsed(folder: Path, _state: tuple[tuple[str, int, int], ...]) -> Sequence[Content[Row]]:
    return [found for _, found in finished_files(ATTACK, folder, _silent)]


def _silent(_: str) -> None:
    """Damaged and unfinished files are left out: what they would give is missing, and is made again."""


def _name(data: str) -> str:
    return Path(data).name


def number(measure: Measure, recipe: Recipe, folders: Sequence[Path], network: str | None = None) -> Number | None:
    """The accuracy that the rows in these folders give; None if they are not finished or not there."""
    source = Evidence.of(recipe, folders, network)
    if measure.kind == "clean":
        largest = max(source.attacks(), key=lambda found: len(found.rows), default=None)
        return largest and _number(clean_rate(largest.rows), len(largest.rows))
    if measure.kind == "certified":
        return _certified(measure, source)
    threat = Threat.parse(measure.threat or recipe.threat)
    images = measure.images or size_of(recipe).test
    if measure.kind == "strong":
        return _estimated(measure.within, threat, images, source)
    rows = _rows(dict(measure.attack), threat, images, source)
    return _number(robust_rate(rows), len(rows)) if rows else None


def _number(found: Rate, images: int) -> Number:
    return Number(100 * found.value, 100 * found.low, 100 * found.high, images)


def _rows(settings: dict[str, Any], threat: Threat, images: int, source: Evidence) -> list[Row]:
    """The rows of an attack with these settings on so many images; none if they are not there."""
    attack = make_attack(settings)
    ours = written_out(settings, attack)
    fitting = (
        found.rows
        for found in source.attacks()
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


def _estimated(within: float, threat: Threat, images: int, source: Evidence) -> Number | None:
    """The narrowest estimate by `strong`. Where the first phase settles it, its rows alone give the interval."""
    first = _rows({"name": "cascade", "attacks": [FIRST]}, threat, images, source)
    if not first:
        return None
    survivors = sum(row["robust"] for row in first)
    drawn = [(Law(len(first), survivors, DRAWN, USUAL).estimate([]), 0)]
    drawn += [
        (one.estimate, one.drawn)
        for one in source.estimates()
        if (one.name, one.threat, one.whole) == ("strong", str(threat), len(first))
    ]
    best, count = min(drawn, key=lambda pair: pair[0].half_width)
    return Number(*best, len(first), count) if Goal(within).reached(best) or not survivors else None


def _certified(measure: Measure, source: Evidence) -> Number | None:
    how, total = Smoothing(**measure.attack), size_of(source.recipe).test
    every = max(total // (measure.images or total), 1)
    wanted = {"sigma": how.sigma, "n": how.n, "alpha": how.alpha, "every": every}
    for one in source.certificates():
        radii = {name: radius for radius, name in one.radii}
        covered = str(Threat.parse(measure.covers))
        if wanted.items() <= one.header.items() and len(one.rows) == measure.images and covered in radii:
            return _number(one.accuracy(radii[covered] if measure.threat else 0.0), len(one.rows))
    return None


def is_trained(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder has a finished training of this recipe, with or without its weights."""
    run = Run(folder)
    if not run.recipe_file.exists() or not same_recipe(recipe, folder):
        return False
    history = run.history()
    return len(history) >= recipe.epochs or bool(history and history[-1].get("collapsed"))


def same_recipe(recipe: Recipe, folder: Path) -> bool:
    """Whether the run in the folder has this recipe. Of data and weights in folders of ours, the name counts.

    The precision does not: it follows the processor. A run that cannot be read has another recipe.
    """
    try:
        theirs = recipe_of(Run(folder))
        moved = {
            key: getattr(recipe, key)
            for key in ("data", "weights")
            if Path(getattr(theirs, key) or "").name == Path(getattr(recipe, key) or "").name
        }
        recipe.check_same(theirs.model_copy(update={**moved, "amp": recipe.amp}), folder)
    except UserError:
        return False
    return True
