"""Which attacks to run: one, or a suite, a named list of attacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from atent.attacks import Attack, make_attack
from atent.attacks.protocols import Selective, title_of
from atent.errors import UserError, unknown
from atent.evaluation.target import Target
from atent.methods import is_imported, parse_setting, written_out
from atent.progress import say
from atent.threat import Threat

Settings = dict[str, Any]

_QUICK: list[Settings] = [{"name": "pgd", "steps": 20}, {"name": "pgd", "steps": 20, "loss": "margin"}]
# The first phase of `strong`, and of every attack with --within: of attacks with 80 passes per image, the one that
# broke most held-out images of three networks (LOG.md, 2026-11-17).
FIRST: Settings = {"name": "apgd", "steps": 40}
# Cheapest first, by passes for each additional image that they break (results/cascade.jsonl; LOG.md, 2026-11-17).
_STRONG: list[Settings] = [
    FIRST,
    {"name": "apgd"},
    {"name": "apgd", "loss": "dlr-targeted", "targets": 3},
    {"name": "square", "patience": 5.0},
]

# quick: a first look, some seconds for a small network. strong: what to report. paper: the ATENT paper's own attacks,
# Tables 1 to 3 and 6, also where they are weak; under linf its PGD-20 is added, for the radii that the paper uses,
# with the step that it names, which does not cross the ball.
SUITES: dict[str, dict[str, list[Settings]]] = {
    "quick": {"linf": _QUICK, "l2": _QUICK},
    "paper": {
        "linf": [
            {"name": "fgsm"},
            {"name": "pgd", "steps": 20},
            {"name": "pgd", "steps": 40},
            {"name": "cw-linf"},
            {"name": "deepfool"},
            {"name": "atent-chain", "steps": 20},
        ],
        "l2": [{"name": "pgd", "steps": 40, "restarts": 10}, {"name": "cw-l2"}],
    },
    "strong": {"linf": _STRONG, "l2": _STRONG},
}
CASCADES = ("strong",)  # whose attacks run in sequence, each on what the earlier ones left: one row per image
# The paper's steps: .01 on MNIST at .3, .003 on CIFAR-10 at .031 or 8/255.
PAPER_STEPS = ((0.3, 0.01), (0.031, 0.003), (8 / 255, 0.003))


def suite_attacks(name: str, threat: Threat | str, classes: int | None = None) -> list[Settings]:
    """The settings of a suite's attacks for a threat, without those not defined for so few classes."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    threat = Threat.parse(threat)
    attacks = _defined(SUITES[name][threat.norm], classes)
    if name == "paper" and threat.norm == "linf":
        named = [step for eps, step in PAPER_STEPS if abs(eps - threat.eps) < 1e-9]
        return [*({"name": "pgd", "steps": 20, "step": step} for step in named), *attacks]
    return attacks


_CLASSES = {"dlr": 3, "dlr-targeted": 4}  # that a loss needs


def _check_classes(table: Settings, classes: int) -> None:
    """Refuse an attack, also one inside a cascade, whose loss is not defined for so few classes."""
    for inside in table.get("attacks", ()):
        _check_classes(inside, classes)
    name, loss = str(table["name"]), str(table.get("loss"))
    if not is_imported(name) and (needed := _CLASSES.get(loss, 0)) > classes:
        raise UserError(f"attack {name}: loss {loss!r} needs {needed} classes; the data has {classes}")


def _defined(attacks: list[Settings], classes: int | None) -> list[Settings]:
    """The attacks with losses that so many classes define: targeted DLR needs four of them, DLR three."""
    if classes is None or classes > 3:
        return attacks
    swapped = [
        {**settings, "loss": "dlr"} if settings.get("loss") == "dlr-targeted" else settings for settings in attacks
    ]
    defined = [settings for settings in swapped if classes > 2 or settings.get("loss") != "dlr"]
    if defined != attacks:
        instead = "untargeted DLR takes its place" if classes == 3 else "APGD on it is left out"
        say(f"the targeted DLR loss needs 4 classes, the data has {classes}: {instead}")
    return defined


class Planned(NamedTuple):
    """An attack to run against a threat: its title in tables, and its settings with every default written out."""

    attack: Attack
    title: str
    settings: Settings
    threat: Threat

    @classmethod
    def of(cls, attack: Attack, settings: Mapping[str, Any], threat: Threat) -> "Planned":
        """`settings` is the table {"name": ..., field: value} that the attack was made of."""
        return cls(attack, title_of(attack, str(settings["name"])), written_out(settings, attack), threat)


class Phases(NamedTuple):
    """Two attacks in sequence against a threat, and the name of the suite or attack that they stand for.

    The first attacks all images, the second a random sample of those that are still classified correctly.
    """

    name: str
    first: Planned
    second: Planned

    @property
    def threat(self) -> Threat:
        return self.second.threat


@dataclass(frozen=True)
class Choice:
    """The attacks that a user asked for: one, or those of a suite, which depend on the threat."""

    suite: str | None
    settings: Settings
    one: Attack | None

    def plan(self, target: Target, threats: Sequence[Threat]) -> list[Planned]:
        """Every attack against every threat (default: the target's own). Refuse an attack not defined for them."""
        return _checked([one for threat in _threats(target, threats) for one in self._against(threat, target)], target)

    def phases(self, target: Target, threats: Sequence[Threat]) -> list[Phases]:
        """The same in two phases, for an estimate of the whole test set."""
        found = [self._phases(threat, target) for threat in _threats(target, threats)]
        _checked([one for phases in found for one in phases[1:]], target)
        return found

    def _against(self, threat: Threat, target: Target) -> list[Planned]:
        if self.one is not None:
            return [Planned.of(self.one, self.settings, threat)]
        found = suite_attacks(str(self.suite), threat, target.images.shape.classes)
        if self.suite in CASCADES:
            found = [_cascade(str(self.suite), found)]
        return [Planned.of(make_attack(settings), settings, threat) for settings in found]

    def _phases(self, threat: Threat, target: Target) -> Phases:
        start = {"name": "cascade", "attacks": [FIRST]}  # as in the whole suite, so that it draws the same numbers
        first = Planned.of(make_attack(start), start, threat)
        if self.one is not None:
            name, *fields = (f"{key} {value}" if key != "name" else str(value) for key, value in self.settings.items())
            called = f"{name} ({', '.join(fields)})" if fields else name
            return Phases(called, first, Planned.of(self.one, self.settings, threat))
        name = str(self.suite)
        found = suite_attacks(name, threat, target.images.shape.classes)
        rest = _cascade(name, [settings for settings in found if settings != FIRST])
        return Phases(name, first, Planned.of(make_attack(rest), rest, threat))


def _threats(target: Target, threats: Sequence[Threat]) -> Sequence[Threat]:
    if not threats and target.threat is None:
        raise UserError(f"{target.model} has no threat of its own, so --threat must be given, such as linf:0.3")
    return threats or [Threat.parse(str(target.threat))]


def _checked(plan: list[Planned], target: Target) -> list[Planned]:
    for one in plan:
        _check_classes(one.settings, target.images.shape.classes)
        if isinstance(one.attack, Selective):
            one.attack.check(target.network, one.threat)
    return plan


def _cascade(name: str, attacks: list[Settings]) -> Settings:
    return {"name": "cascade", "called": name, "attacks": attacks}


def choose_attacks(name: str | None, fields: Sequence[str], suite: str | None) -> Choice:
    """The attack of this name (default: pgd) with fields `key=value`, or a suite; wrong names are refused here."""
    given = dict(map(parse_setting, fields))
    if "name" in given:
        raise UserError("--set name=...: the attack's name is given by --attack")
    if given.get("called") in SUITES:
        raise UserError(f"--set called={given['called']}: that is the name of a suite; allowed: any other name")
    if suite is None:
        settings = {"name": name or "pgd", **given}
        return Choice(None, settings, make_attack(settings, f"attack {settings['name']}"))
    if name or given:
        raise UserError(f"--suite {suite} with --attack or --set: a suite's attacks are fixed; give one or the other")
    if suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    return Choice(suite, {}, None)
