"""Attacks: each a frozen dataclass, called as `attack(model, x, y, threat, generator) -> x_adv`."""

from collections.abc import Callable, Mapping
from typing import Any

from atent.attacks.apgd import Apgd
from atent.attacks.atent_chain import AtentChain
from atent.attacks.cascade import Cascade
from atent.attacks.cw_l2 import CwL2
from atent.attacks.cw_linf import CwLinf
from atent.attacks.deepfool import DeepFool
from atent.attacks.external.autoattack import AutoAttack
from atent.attacks.external.libraries import LIBRARIES, make_engine
from atent.attacks.fgsm import Fgsm
from atent.attacks.pgd import Pgd
from atent.attacks.protocols import Attack, MinimalAttack, PerImage
from atent.attacks.smooth_pgd import SmoothPgd
from atent.attacks.square import Square
from atent.errors import UserError, unknown
from atent.methods import make, written_out

ATTACKS: dict[str, Callable[..., Attack]] = {
    "fgsm": Fgsm,
    "pgd": Pgd,
    "apgd": Apgd,
    "square": Square,
    "atent-chain": AtentChain,
    "cw-l2": CwL2,
    "cw-linf": CwLinf,
    "deepfool": DeepFool,
    "smooth-pgd": SmoothPgd,
}
# Other libraries' attacks, which need the extra [attacks].
OUTSIDE: dict[str, Callable[..., Attack]] = {"autoattack": AutoAttack}
# The attacks of a cascade that names none: gradients, then a random search that masked gradients do not stop
# (docs/recipes.md, results/monitors.jsonl).
USUAL: list[dict[str, Any]] = [{"name": "apgd", "steps": 20}, {"name": "square", "queries": 100}]

__all__ = [
    "ATTACKS",
    "OUTSIDE",
    "Apgd",
    "AtentChain",
    "Attack",
    "AutoAttack",
    "Cascade",
    "CwL2",
    "CwLinf",
    "DeepFool",
    "Fgsm",
    "MinimalAttack",
    "PerImage",
    "Pgd",
    "SmoothPgd",
    "Square",
    "make_attack",
]


def make_attack(settings: Mapping[str, Any], where: str = "") -> Attack:
    """Make `{"name": ..., field: value}`: ours, `foolbox:Class`, `art:Class` or a user's `package.module:Name`.

    `{"name": "cascade", "attacks": [{"name": ...}, ...]}` makes several in sequence; without `attacks`, the usual ones.
    """
    library, colon, _ = str(settings.get("name", "")).partition(":")
    if colon and library in LIBRARIES:
        return make_engine(settings)
    if settings.get("name") == "cascade":
        return _make_cascade(settings, where or "attack cascade")
    attack: Attack = make({**ATTACKS, **OUTSIDE, "cascade": Cascade}, settings, "attack", where)
    return attack


def _make_cascade(settings: Mapping[str, Any], where: str) -> Cascade:
    for key in settings:
        if key not in ("name", "attacks", "called"):
            raise unknown("attack field", key, ["attacks", "called"], where)
    tables = settings.get("attacks", USUAL)
    if not isinstance(tables, list | tuple) or not tables or not all(isinstance(one, Mapping) for one in tables):
        raise UserError(f"{where}: attacks = {tables!r}; allowed: a list of tables, each with the name of an attack")
    made = tuple(make_attack(one, where) for one in tables)
    settled = [written_out(one, attack) for one, attack in zip(tables, made, strict=True)]
    called = str(settings.get("called", ""))
    return Cascade(made, called, {"name": "cascade", "called": called, "attacks": settled})
