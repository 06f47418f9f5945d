"""Defenses: each a frozen dataclass, called as `defense(model, x, y, threat, generator)`, yielding loss terms."""

from collections.abc import Callable

from atent.defenses.atent import Atent
from atent.defenses.gaussian import Gaussian
from atent.defenses.pgd_at import PgdAt
from atent.defenses.protocol import Defense, Term
from atent.defenses.smooth_adv import SmoothAdv
from atent.defenses.standard import Standard

DEFENSES: dict[str, Callable[..., Defense]] = {
    "standard": Standard,
    "pgd-at": PgdAt,
    "atent": Atent,
    "gaussian": Gaussian,
    "smooth-adv": SmoothAdv,
}

__all__ = ["DEFENSES", "Atent", "Defense", "Gaussian", "PgdAt", "SmoothAdv", "Standard", "Term"]
