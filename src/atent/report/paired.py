"""Two networks on the same images: the difference of two paired proportions, its interval, and McNemar's exact test.

Pure functions of four counts. Pairing matters: most images are hit or missed by both networks, so the difference is
known far better than the two accuracies are.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from atent.smoothing.bounds import lead_chance
from atent.storage.rows import Rate, rate_of


class Paired(NamedTuple):
    """How many images both networks get right, only the first, only the second, and neither."""

    both: int
    first: int
    second: int
    neither: int

    @classmethod
    def of(cls, first: Mapping[int, bool], second: Mapping[int, bool]) -> "Paired":
        """Count the images that both tables have; each maps the index of an image to whether it is right."""
        outcomes = [(first[index], second[index]) for index in first.keys() & second.keys()]
        cells = [(True, True), (True, False), (False, True), (False, False)]
        return cls(*(outcomes.count(cell) for cell in cells))

    @property
    def images(self) -> int:
        return sum(self)

    @property
    def first_rate(self) -> Rate:
        return rate_of((self.both + self.first) / self.images, self.images)

    @property
    def second_rate(self) -> Rate:
        return rate_of((self.both + self.second) / self.images, self.images)

    @property
    def difference(self) -> Rate:
        """The share of the second minus that of the first, with its 95 % interval.

        The interval is Newcombe's for paired data (method 10 of Newcombe 1998, Statistics in Medicine 17, 2635-2650,
        https://doi.org/10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C): the Wilson intervals of
        the two shares, combined with the correlation phi of the pairs.
        """
        p, low_p, high_p = self.second_rate
        q, low_q, high_q = self.first_rate
        value = (self.second - self.first) / self.images
        return Rate(
            value,
            value - _combined(p - low_p, high_q - q, self.phi),
            value + _combined(high_p - p, q - low_q, self.phi),
        )

    @property
    def phi(self) -> float:
        """The correlation of the pairs. A positive one is corrected for continuity, by n / 2 in its numerator."""
        margins = (self.both + self.first) * (self.second + self.neither)
        margins *= (self.both + self.second) * (self.first + self.neither)
        product: float = self.both * self.neither - self.first * self.second
        if product > 0:
            product = max(product - self.images / 2, 0)
        return product / math.sqrt(margins) if margins else 0.0

    @property
    def p(self) -> float:
        """McNemar's exact two-sided p: only one of two equal networks would be right on either half of such images."""
        more, less = max(self.first, self.second), min(self.first, self.second)
        return min(1.0, 2 * lead_chance(more, less))


def _combined(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0))
