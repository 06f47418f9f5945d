"""Attacks: each a frozen dataclass, called as `attack(model, x, y, threat, generator) -> x_adv`."""

from collections.abc import Callable

from atent.attacks.atent_chain import AtentChain
from atent.attacks.cw_l2 import CwL2
from atent.attacks.cw_linf import CwLinf
from atent.attacks.deepfool import DeepFool
from atent.attacks.fgsm import Fgsm
from atent.attacks.pgd import Pgd
from atent.attacks.protocol import Attack, MinimalAttack

ATTACKS: dict[str, Callable[..., Attack]] = {
    "fgsm": Fgsm,
    "pgd": Pgd,
    "atent-chain": AtentChain,
    "deepfool": DeepFool,
    "cw-l2": CwL2,
    "cw-linf": CwLinf,
}

__all__ = ["ATTACKS", "AtentChain", "Attack", "CwL2", "CwLinf", "DeepFool", "Fgsm", "MinimalAttack", "Pgd"]
