"""Attacks: each a frozen dataclass, called as `attack(model, x, y, threat, generator) -> x_adv`."""

from collections.abc import Callable, Mapping
from typing import Any

from atent.attacks.apgd import Apgd
from atent.attacks.atent_chain import AtentChain
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
from atent.methods import make

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

__all__ = [
    "ATTACKS",
    "OUTSIDE",
    "Apgd",
    "AtentChain",
    "Attack",
    "AutoAttack",
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
    """Make `{"name": ..., field: value}`: ours, `foolbox:Class`, `art:Class` or a user's `package.module:Name`."""
    library, colon, _ = str(settings.get("name", "")).partition(":")
    if colon and library in LIBRARIES:
        return make_engine(settings)
    attack: Attack = make({**ATTACKS, **OUTSIDE}, settings, "attack", where)
    return attack
