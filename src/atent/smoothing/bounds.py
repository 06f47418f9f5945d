"""What counts prove about a smoothed network: pure functions of counts, without a network and without randomness.

The smoothed network g predicts for x the class that the network f predicts most often for x + N(0, sigma^2 I). If f
predicts class A there with probability p > 1/2, g predicts A within the l2 radius sigma Phi^-1(p) of x (Cohen et al.
2019, https://arxiv.org/abs/1902.02918, Theorem 1). Draws of the noise give a lower bound on p that is wrong with
probability at most alpha.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from scipy import special

from atent.errors import UserError
from atent.threat import Threat

ABSTAIN = -1


class Certificate(NamedTuple):
    """The result for one image. `radius` is l2, in pixel values, and 0 where the `prediction` is ABSTAIN.

    `top` is the class that the first n0 draws selected; `counts` is how often each class was predicted in the draws
    after them; `draws` is the number of all draws.
    """

    prediction: int
    radius: float
    top: int
    counts: dict[int, int]
    draws: int


def lower_bound(agreed: int, draws: int, alpha: float) -> float:
    """The lower bound of Clopper and Pearson: the p at which `agreed` or more of `draws` have probability alpha."""
    return float(special.betaincinv(agreed, draws - agreed + 1, alpha)) if agreed else 0.0


def certified_radius(agreed: int, draws: int, sigma: float, alpha: float) -> float | None:
    """sigma Phi^-1(p) at the lower bound of p; None (abstain) where p > 1/2 is not proven."""
    p = lower_bound(agreed, draws, alpha)
    return sigma * float(special.ndtri(p)) if p >= 0.5 else None


def vote(counts: Sequence[int], alpha: float) -> int:
    """The most frequent class; ABSTAIN if its lead over the second is not significant at level alpha (two-sided)."""
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    first, second = counts[order[0]], counts[order[1]]
    # Either of two equally likely classes can have such a lead: twice the probability of one tail.
    chance = min(1.0, 2 * lead_chance(first, second))
    return order[0] if chance <= alpha else ABSTAIN


def lead_chance(first: int, second: int) -> float:
    """The probability that one of two equally likely classes gets `first` or more of the `first + second` draws."""
    return float(special.bdtr(second, first + second, 0.5))


def largest_radius(sigma: float, n: int, alpha: float) -> float:
    """The radius that n draws prove if all of them agree; below 0: n draws can only abstain."""
    return sigma * float(special.ndtri(alpha ** (1 / n)))


def draws_for(radius: float, sigma: float, alpha: float) -> float:
    """The fewest draws that prove a radius, if all of them agree: q^n <= alpha, q = Phi(radius / sigma)."""
    log_q = float(special.log_ndtr(radius / sigma))
    fewest = math.log(alpha) / log_q if log_q else math.inf
    return math.ceil(fewest) if fewest < 1e15 else math.inf


def l2_radius(threat: Threat, pixels: int | None) -> float:
    """The l2 ball that contains the threat: |delta|_2 <= sqrt(pixels) |delta|_inf."""
    if threat.norm == "l2":
        return threat.eps
    if pixels is None:
        raise UserError(f"threat {threat}: its l2 radius is eps sqrt(d), but the network's input size d is not known")
    return threat.eps * math.sqrt(pixels)


def as_row(certificate: Certificate) -> dict[str, Any]:
    """For a JSON line."""
    return certificate._asdict() | {"counts": {str(k): count for k, count in certificate.counts.items()}}
