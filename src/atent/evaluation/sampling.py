"""The accuracy of a whole test set when an expensive attack runs on a random sample of it.

Phase one attacked all images; some survived. Phase two attacks the survivors in random order and counts the broken
ones at looks that are fixed in advance. `Law` turns the counts into an interval for the number of survivors that phase
two would break, and so for the accuracy of the whole test set. With probability `confidence` the intervals of all looks
hold together, so a run may stop at any look, for any reason. Statement and proof: docs/whole-test-set.md.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from atent.errors import UserError

GROWTH = 1.05  # ratio of the numbers of draws at consecutive looks
AIM = 0.95  # half-width in points for which most of the error is reserved; chosen by mean draws for 1 point
NEGLIGIBLE = 1e-9  # a tail of this part of the error is counted as error and no longer followed
RESERVED = 0.8  # the share of the error that is reserved for it; the rest is spread over all looks

Array = NDArray[np.float64]
Limits = Callable[[int], Sequence[int]]


class Estimate(NamedTuple):
    """The accuracy of the whole test set in percent: the estimate and its interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Goal:
    """When a run ends: at a half-width of `within` points, or when "at least `claim` percent" is settled."""

    within: float | None = None
    claim: float | None = None

    def __post_init__(self) -> None:
        if self.within is not None and not (math.isfinite(self.within) and self.within > 0):
            raise UserError(f"within {self.within:g}; allowed: points of accuracy above 0")
        if self.claim is not None and not 0 < self.claim < 100:
            raise UserError(f"claim {self.claim:g}; allowed: percent above 0 and below 100")

    def reached(self, estimate: Estimate) -> str | None:
        """Why the run ends here: the claim is `accepted` or `refuted`, or it is `within`; None: it continues."""
        if self.claim is not None and estimate.low >= self.claim:
            return "accepted"
        if self.claim is not None and estimate.high < self.claim:
            return "refuted"
        return "within" if self.within is not None and estimate.half_width <= self.within else None


class OneSided:
    """For each B a test of the hypothesis that at least B of the survivors break. It rejects if few broke so far.

    The test of B rejects at a look with at most `rare(look, B)` broken images. Under the hypothesis it rejects at any
    of the looks with probability at most alpha. `limits(B)` has a count for each look: only for counts up to it the
    error reserved for the aim may be used.
    """

    def __init__(self, survivors: int, looks: Sequence[int], alpha: float, limits: Limits) -> None:
        self.survivors, self.looks, self.alpha, self.limits = survivors, looks, alpha, limits
        self.log_factorial: Array = special.gammaln(np.arange(survivors + 1) + 1.0)
        self._running: dict[int, tuple[list[int], Iterator[int]]] = {}
        self._largest: dict[tuple[int, int], int] = {}

    def largest(self, look: int, count: int) -> int:
        """The largest B that is not rejected at this look; all larger ones are.

        A tail below half of a look's own share of alpha is rejected whatever happened before, and tails shrink as B
        grows. Below the smallest such B, each B is tested, because rare counts need not grow with B.
        """
        if (look, count) not in self._largest:
            half = self.alpha * (1 - RESERVED) / len(self.looks) / 2
            every = range(self.survivors + 1)
            certain = bisect_left(every, True, key=lambda b: self._tail(b, self.looks[look], count) < half)
            self._largest[look, count] = next(b for b in reversed(every[:certain]) if self.rare(look, b) < count)
        return self._largest[look, count]

    def rare(self, look: int, breaking: int) -> int:
        found, further = self._running.setdefault(breaking, ([], self._rare_counts(breaking)))
        while len(found) <= look:
            found.append(next(further))
        return found[look]

    def _rare_counts(self, breaking: int) -> Iterator[int]:
        """Look by look, from the probabilities of the counts so far without the paths that were rejected earlier.

        Given their sum, binomial counts are hypergeometric. So the counts are convolved as binomial ones, with the rate
        B/N, and then weighted by the probability that the survivors not drawn yet bring the sum to B.
        """
        rate = breaking / self.survivors
        paths, low, last, spent, used = np.ones(1), 0, 0, 0.0, 0.0
        for look, (draws, limit) in enumerate(zip(self.looks, self.limits(breaking), strict=True), start=1):
            paths = np.convolve(paths, self._binomial(draws - last, rate, np.arange(draws - last + 1)))
            left, last = self.survivors - draws, draws
            least, most = max(low, breaking - left), min(low + len(paths) - 1, breaking)
            paths, low = paths[least - low : most - low + 1], least
            law = paths * self._weights(breaking, left, np.arange(least, most + 1))
            below = np.cumsum(law)
            spread = self.alpha * (1 - RESERVED) * look / len(self.looks)
            rare = int(np.searchsorted(below, spread + used - spent, side="right"))
            aimed = int(np.searchsorted(below, spread + RESERVED * self.alpha - spent, side="right"))
            rare = max(rare, min(aimed, limit - low + 1))
            spent += float(below[rare - 1]) if rare else 0.0
            used = max(used, spent - spread)
            kept = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), NEGLIGIBLE * self.alpha))
            spent += float(law[kept:].sum())
            paths, low = paths[rare:kept], low + rare
            yield low - 1

    def _binomial(self, draws: int, rate: float, counts: NDArray[np.int64]) -> Array:
        ways = self.log_factorial[draws] - self.log_factorial[counts] - self.log_factorial[draws - counts]
        law: Array = np.exp(ways + special.xlogy(counts, rate) + special.xlog1py(draws - counts, -rate))
        return law

    def _tail(self, breaking: int, draws: int, count: int) -> float:
        """The probability that at most `count` of the first `draws` broke, if B of all survivors break."""
        counts = np.arange(max(0, draws - self.survivors + breaking), min(count, draws, breaking) + 1)
        law = self._binomial(draws, breaking / self.survivors, counts)
        return float((law * self._weights(breaking, self.survivors - draws, counts)).sum())

    def _weights(self, breaking: int, left: int, counts: NDArray[np.int64]) -> Array:
        """Hypergeometric over binomial probabilities of counts that leave `left` survivors undrawn."""
        rate = breaking / self.survivors
        later = self._binomial(left, rate, breaking - counts)
        return later / self._binomial(self.survivors, rate, np.array([breaking]))


def stopping_count(draws: int, survivors: int, half_width: float, alpha: float) -> tuple[int, float]:
    """The largest count (negative: none) whose interval is about +- `half_width`, and the lower end of the interval.

    By Wilson's interval for a sample without replacement. It decides where error is spent, not how much.
    """
    if draws == survivors:
        return draws, survivors
    z = float(special.ndtri(1 - RESERVED * alpha))
    n = draws * (survivors - 1) / (survivors - draws)
    shrink = 1 + z * z / n
    variance = n * ((half_width * shrink / (survivors * z)) ** 2 - (z / (2 * n)) ** 2)
    if variance >= 0.25:
        return draws, survivors
    count = math.floor(draws * (1 - math.sqrt(1 - 4 * variance)) / 2)
    middle = (count / draws + z * z / (2 * n)) / shrink
    return count, survivors * middle - half_width


@dataclass(frozen=True)
class Law:
    """Intervals for the number of survivors that phase two would break. They depend on nothing but these fields."""

    images: int
    survivors: int
    batch: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("images", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}; allowed: 1 or more images")
        if not 0 <= self.survivors <= self.images:
            raise UserError(f"survivors {self.survivors}; allowed: 0 .. {self.images}, the number of images")
        if not 0 < self.confidence < 1:
            raise UserError(f"confidence {self.confidence:g}; allowed: above 0 and below 1")

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """The numbers of draws at which the broken ones are counted: multiples of the batch, then all survivors."""
        looks = [0]
        while looks[-1] < self.survivors:
            batches = max(1 + looks[-1] // self.batch, math.ceil(GROWTH * looks[-1] / self.batch))
            looks.append(min(self.survivors, self.batch * batches))
        return tuple(looks[1:])

    def bounds(self, broken: Sequence[int]) -> tuple[int, int]:
        """The interval after the counts of the first looks: what the intervals of these looks have in common.

        If they have nothing in common, one of them missed the truth; then it is the interval of the last look.
        """
        self._check(broken)
        low, high = 0, self.survivors
        for look, count in enumerate(broken):
            least, most = self.at(look, count)
            low, high = max(low, least), min(high, most)
        return (low, high) if low <= high else self.at(len(broken) - 1, broken[-1])

    def at(self, look: int, broken: int) -> tuple[int, int]:
        """The interval of one look alone."""
        draws = self.looks[look]
        if draws == self.survivors:
            return broken, broken
        most_unbroken = self._tests[1].largest(look, draws - broken)
        return self.survivors - most_unbroken, self._tests[0].largest(look, broken)

    def estimate(self, broken: Sequence[int]) -> Estimate:
        """The accuracy of the whole test set, worst case of both phases; before any draw, that of phase one."""
        low, high = self.bounds(broken)
        likely = self.survivors * broken[-1] / self.looks[len(broken) - 1] if broken else low
        return self._accuracy(min(max(likely, low), high), low, high)

    def expected_draws(self, goal: Goal, rate: float = 0.0) -> int:
        """The draws after which the goal is reached if images break at this rate. The default gives the fewest."""
        if goal.reached(self.estimate([])):
            return 0

        def is_reached(look: int) -> bool:
            bounds = self.at(look, round(rate * self.looks[look]))
            return goal.reached(self._accuracy(rate * self.survivors, *bounds)) is not None

        return self.looks[bisect_left(range(len(self.looks) - 1), True, key=is_reached)]

    def _accuracy(self, likely: float, low: int, high: int) -> Estimate:
        value, least, most = (100 * (self.survivors - count) / self.images for count in (likely, high, low))
        return Estimate(value, least, most)

    def _check(self, broken: Sequence[int]) -> None:
        if len(broken) > len(self.looks):
            raise UserError(f"{len(broken)} counts of broken images; allowed: at most {len(self.looks)}, one per look")
        for draws, more in zip(np.diff([0, *self.looks]), np.diff([0, *broken]), strict=False):
            if not 0 <= more <= draws:
                raise UserError(f"counts {list(broken)}; allowed: from look to look 0 .. {draws} more broken images")

    @cached_property
    def _tests(self) -> tuple[OneSided, OneSided]:
        """The tests of "at least B would break" by few broken images, and of "at least B would not" by few unbroken."""
        alpha = (1 - self.confidence) / 2
        stops = [stopping_count(draws, self.survivors, AIM / 100 * self.images, alpha) for draws in self.looks]
        few_broken = [count for count, _ in stops]

        def few_unbroken(unbroken: int) -> list[int]:
            broken = self.survivors - unbroken
            return [t if broken <= least else -1 for t, (_, least) in zip(self.looks, stops, strict=True)]

        common = self.survivors, self.looks, alpha
        return OneSided(*common, lambda _: few_broken), OneSided(*common, few_unbroken)
