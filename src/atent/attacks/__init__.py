"""Attacks: each a frozen dataclass, called as `attack(model, x, y, threat, generator) -> x_adv`."""

from collections.abc import Callable

from atent.attacks.atent_chain import AtentChain
from atent.attacks.fgsm import Fgsm
from atent.attacks.pgd import Pgd
from atent.attacks.protocol import Attack

ATTACKS: dict[str, Callable[..., Attack]] = {"fgsm": Fgsm, "pgd": Pgd, "atent-chain": AtentChain}

__all__ = ["ATTACKS", "AtentChain", "Attack", "Fgsm", "Pgd"]
