"""When to stop drawing for an image: a test after all draws, or tests that stop when every radius is settled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from atent.errors import UserError
from atent.limits import LARGEST, MOST, check_range
from atent.smoothing.bounds import certified_radius, draws_for, largest_radius

BLOCK = 100  # draws that are made and counted together
GIVE_UP = 0.01  # probability of stopping for an image that all n draws might have certified; no guarantee depends on it
GROWTH = 1.05  # ratio of the numbers of draws at consecutive looks


def rare_counts(rate: float, looks: Sequence[int], alpha: float, shares: Sequence[float] | None = None) -> list[int]:
    """For each look, a count of events so low that all such counts together have probability at most alpha.

    Each draw is an event with probability `rate`; the count is looked at after looks[0], looks[1], ... draws. The
    probability of a rare count at any look so far is computed exactly and is at most what may be spent by then: from
    look to look the distribution of the count is kept, without the counts that were rare at an earlier look. At a
    higher rate all these counts are even rarer. -1 where no count is rare enough.

    `shares` are the shares of the work done at the looks, on which the spending depends. Default: of the draws.
    """
    alive, low = np.ones(1), 0  # the probabilities of low, low + 1, ... events that were not rare so far
    spent, last, found = 0.0, 0, []
    for draws, share in zip(looks, shares or [draws / looks[-1] for draws in looks], strict=True):
        more, least, lost = _trimmed(_binomial(draws - last, rate), alpha)
        alive, low, last = np.convolve(alive, more), low + least, draws
        spent += lost
        budget = alpha * _spendable(share) - spent
        rare = int(np.searchsorted(np.cumsum(alive), budget, side="right"))
        spent += float(alive[:rare].sum())
        alive, least, lost = _trimmed(alive[rare:], alpha)
        low, spent = low + rare + least, spent + lost
        found.append(low - 1)
    return found


def _spendable(done: float) -> float:
    """The share of alpha that may be spent up to this share of the draws: half is reserved for the last look.

    So a count that the fixed test certifies after n draws is nearly always certified by the early test, too.
    """
    return 1.0 if done == 1 else math.sqrt(done) / 2


def _binomial(draws: int, rate: float) -> NDArray[np.float64]:
    """The probabilities of 0 .. draws events."""
    k = np.arange(draws + 1)
    ways = special.gammaln(draws + 1) - special.gammaln(k + 1) - special.gammaln(draws - k + 1)
    law: NDArray[np.float64] = np.exp(ways + special.xlogy(k, rate) + special.xlog1py(draws - k, -rate))
    return law


def _trimmed(law: NDArray[np.float64], alpha: float) -> tuple[NDArray[np.float64], int, float]:
    """A distribution without its negligible tails, the length of the lower one, and their probability (spent, too)."""
    negligible = 1e-9 * alpha
    below, above = np.cumsum(law), np.cumsum(law[::-1])
    low, high = int(np.searchsorted(below, negligible)), int(np.searchsorted(above, negligible))
    if low + high >= len(law):
        return law, 0, 0.0
    lost = (float(below[low - 1]) if low else 0.0) + (float(above[high - 1]) if high else 0.0)
    return law[low : len(law) - high], low, lost


@dataclass(frozen=True)
class Smoothing:
    """How a smoothed network is certified: every setting that determines the result, except the seed.

    `n0` draws select the class, then up to `n` more bound its probability; the radius is wrong with probability at
    most alpha. With `radii` an image is finished as soon as its outcome at each of them is settled. Without `radii`
    all n draws are made, and the radius is the largest that they prove: exactly the procedure of Cohen et al.
    """

    sigma: float
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    radii: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise UserError(f"sigma {self.sigma:g}; allowed: a finite number > 0")
        check_range("sigma", self.sigma, 0, LARGEST)
        for name in ("n0", "n"):
            check_range(name, getattr(self, name), 1, MOST)
        if not 0 < self.alpha < 1:
            raise UserError(f"alpha {self.alpha:g}; allowed: above 0 and below 1")
        for radius in self.radii or ():
            if not (math.isfinite(radius) and radius >= 0):
                raise UserError(f"radius {radius:g}; allowed: finite numbers >= 0")
        self.check_radii(self.radii or ())

    @property
    def largest_radius(self) -> float:
        """The largest radius that n and alpha allow."""
        return largest_radius(self.sigma, self.n, self.alpha)

    def check_radii(self, radii: Sequence[float]) -> None:
        """Refuse n and alpha that can only abstain, or with which a radius could never be proven."""
        if self.largest_radius < 0:
            fewest = draws_for(0.0, self.sigma, self.alpha)
            raise UserError(f"n {self.n} at alpha {self.alpha:g} can only abstain; allowed: n of {fewest:,} or more")
        far = max(radii, default=0.0)
        if self.n < (fewest := draws_for(far, self.sigma, self.alpha)):
            needed = f"n of {fewest:,} or more" if math.isfinite(fewest) else "a larger sigma"
            raise UserError(
                f"radius {far:.4g} cannot be proven: with sigma {self.sigma:g}, n {self.n:,} and alpha {self.alpha:g} "
                f"the largest is {self.largest_radius:.4g} even if every draw agrees; it needs {needed}"
            )

    @cached_property
    def goals(self) -> list[float]:
        """The radii to settle, in order; radius 0 decides whether there is a prediction at all."""
        return sorted({0.0, *(self.radii or ())})

    @cached_property
    def looks(self) -> list[int]:
        """The numbers of draws after which the counts are looked at: fixed in advance, 5 % or one block apart."""
        if self.radii is None:
            return [self.n]
        looks = [min(BLOCK, self.n)]
        while looks[-1] < self.n:
            further = max(1 + looks[-1] // BLOCK, math.ceil(GROWTH * looks[-1] / BLOCK))
            looks.append(min(self.n, BLOCK * further))
        return looks

    @cached_property
    def proving(self) -> list[list[int]]:
        """For each goal and look: with at most so many disagreeing draws, p <= Phi(radius / sigma) is rejected."""
        return [rare_counts(float(special.ndtr(-goal / self.sigma)), self.looks, self.alpha) for goal in self.goals]

    @cached_property
    def refuting(self) -> list[list[int]]:
        """For each goal and look: with at most so many agreeing draws, the goal is given up.

        An image whose expected number of disagreeing draws among n is at most one too many for a proof is given up
        with probability at most 1 %.
        """
        return [rare_counts(1 - (proving[-1] + 1) / self.n, self.looks, GIVE_UP) for proving in self.proving]

    def test(self, only_predict: bool = False) -> "Test":
        """The test of one image, which receives its counts; with `only_predict` its only goal is radius 0."""
        return FixedTest(self) if self.radii is None else EarlyTest(self, goals=1 if only_predict else len(self.goals))


class Test(Protocol):
    """Looks at the number of draws that agree with the selected class, after `next` draws, until it is `settled`."""

    settled: bool
    next: int

    def look(self, agreed: int) -> None:
        """Receive the count after `next` draws."""
        ...

    def radius(self) -> float | None:
        """The radius that is proven; None: nothing is proven, abstain."""
        ...


class FixedTest:
    """All n draws, then the Clopper-Pearson bound."""

    def __init__(self, how: Smoothing) -> None:
        self.how, self.settled, self.next, self.agreed = how, False, how.n, 0

    def look(self, agreed: int) -> None:
        self.agreed, self.settled = agreed, True

    def radius(self) -> float | None:
        return certified_radius(self.agreed, self.how.n, self.how.sigma, self.how.alpha)


class EarlyTest:
    """One test of level alpha for each goal, in order; a goal counts only if all smaller ones are proven.

    Let r be the smallest goal that does not hold. A wrong certificate needs the test of r to reject, which has
    probability at most alpha: so several goals need no correction of alpha. A goal is given up if too many draws
    disagree for any later look, or by `refuting`; giving up proves nothing, so it needs no part of alpha either.
    """

    def __init__(self, how: Smoothing, goals: int) -> None:
        self.how, self.place = how, 0
        self.proven = [False] * goals
        self.settled, self.next = False, how.looks[0]

    def look(self, agreed: int) -> None:
        disagreed = self.next - agreed
        for k, proven in enumerate(self.proven):
            if proven:
                continue
            proving = self.how.proving[k]
            if disagreed <= proving[self.place]:
                self.proven[k] = True
            elif disagreed > proving[-1] or agreed <= self.how.refuting[k][self.place]:
                del self.proven[k:]  # larger goals cannot count without this one
                break
        self.place += 1
        self.settled = all(self.proven) or self.place == len(self.how.looks)
        if not self.settled:
            self.next = self.how.looks[self.place]

    def radius(self) -> float | None:
        held = self.proven.index(False) if False in self.proven else len(self.proven)
        return self.how.goals[held - 1] if held else None
