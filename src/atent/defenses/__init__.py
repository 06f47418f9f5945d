"""Defenses: each a frozen dataclass, called as `defense(model, x, y, threat, generator)`, yielding loss terms."""

from collections.abc import Callable

from atent.defenses.atent import Atent
from atent.defenses.consistency import Consistency
from atent.defenses.fast import Fast, NFgsm
from atent.defenses.gaussian import Gaussian
from atent.defenses.mart import Mart
from atent.defenses.mma import Mma
from atent.defenses.pgd_at import PgdAt
from atent.defenses.protocols import Defense, Remembering, Search, Term, TwoParts, in_two_parts, terms
from atent.defenses.smooth_adv import SmoothAdv
from atent.defenses.standard import Standard
from atent.defenses.trades import Trades
from atent.defenses.trades_smooth import TradesSmooth
from atent.defenses.worst_point import worst_point

DEFENSES: dict[str, Callable[..., Defense]] = {
    "standard": Standard,
    "fast": Fast,
    "n-fgsm": NFgsm,
    "pgd-at": PgdAt,
    "trades": Trades,
    "mart": Mart,
    "mma": Mma,
    "atent": Atent,
    "gaussian": Gaussian,
    "consistency": Consistency,
    "smooth-adv": SmoothAdv,
    "trades-smooth": TradesSmooth,
}

__all__ = [
    "DEFENSES",
    "Atent",
    "Consistency",
    "Defense",
    "Fast",
    "Gaussian",
    "Mart",
    "Mma",
    "NFgsm",
    "PgdAt",
    "Remembering",
    "Search",
    "SmoothAdv",
    "Standard",
    "Term",
    "Trades",
    "TradesSmooth",
    "TwoParts",
    "in_two_parts",
    "terms",
    "worst_point",
]
