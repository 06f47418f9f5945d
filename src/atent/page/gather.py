"""What a run folder has, whole or half-written: recipe, log, rows, estimates, certificates and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atent.errors import UserError
from atent.evaluation.estimate import Estimated, estimates
from atent.report.compare import names_of
from atent.report.tables import Group, finished
from atent.storage.brackets import Bracket, brackets
from atent.storage.certificates import Certified, certified
from atent.storage.checks import Checked, kept_checks
from atent.storage.files import read_json
from atent.storage.rows import variant_of
from atent.storage.run import Run
from atent.threat import Threat


@dataclass(frozen=True)
class Found:
    """The content of a run folder. `problems` are the files that are damaged or unfinished, a sentence each."""

    folder: Path
    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    starts: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    estimates: list[Estimated] = field(default_factory=list)
    certified: list[Certified] = field(default_factory=list)
    brackets: list[Bracket] = field(default_factory=list)
    checks: list[Checked] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def trained(self) -> bool:
        return Run(self.folder).best.exists()

    @property
    def evaluated(self) -> bool:
        return bool(self.groups or self.estimates or self.certified)

    @property
    def main(self) -> Group | None:
        """The attacks to show first: those at the recipe's threat, of these the ones on most images."""
        if not self.groups:
            return None
        trained_for = Threat.parse(self.recipe["threat"]) if _is_threat(self.recipe.get("threat")) else None
        return max(
            self.groups,
            key=lambda one: (one.threat == trained_for, len(one.attacks[0].rows), len(one.attacks), one.threat.eps),
        )

    def warnings(self, group: Group) -> tuple[str, ...] | None:
        """The findings of the checks for these attacks; None if the checks were not run."""
        header = group.attacks[0].header
        mine = [
            one
            for one in self.checks
            if (one.weights, one.data, one.smoothing) == (header["weights"], header["data"], variant_of(header))
            and one.threat == group.threat
        ]
        return tuple(dict.fromkeys(warning for one in mine for warning in one.warnings)) if mine else None


def gather(folders: Sequence[Path]) -> list[Found]:
    """What each folder has. A UserError for one that is no folder, or has nothing of a run."""
    return [_gather(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]


def _gather(folder: Path, name: str) -> Found:
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; allowed: run folders")
    run, problems = Run(folder), list[str]()
    report = problems.append
    recipe, starts, history = dict[str, Any](), list[dict[str, Any]](), list[dict[str, Any]]()
    try:
        recipe = read_json(run.recipe_file) if run.recipe_file.exists() else {}
        known = read_json(run.environment_file).get("starts") if run.environment_file.exists() else []
        starts = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
        history = [row for row in run.history() if isinstance(row.get("epoch"), int)]
    except UserError as error:
        report(str(error))
    plain = folder.resolve().name
    groups = [one._replace(run=f"{name}{one.run.removeprefix(plain)}") for one in finished(folder, report)]
    estimated = [one._replace(run=f"{name}{one.run.removeprefix(plain)}") for one in estimates(folder, report)]
    proven = [one._replace(run=name) for one in certified(folder, report)]
    both = [one._replace(certified=one.certified._replace(run=name)) for one in brackets(folder, report)]
    results = (groups, estimated, proven, both, kept_checks(folder, report))
    found = Found(folder, name, recipe, starts, history, *results, problems=list(dict.fromkeys(problems)))
    if not (recipe or history or found.evaluated or problems):
        raise UserError(f"{folder} has no recipe and no rows; expected a run folder of atent train or attack")
    return found


def _is_threat(text: object) -> bool:
    try:
        Threat.parse(text)  # type: ignore[arg-type]
    except UserError:
        return False
    return True
