"""Does the smoothed network misclassify a point? A test that may stop early, and the tests of one image's points."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atent.smoothing.bounds import lead_chance
from atent.smoothing.counting import Block, blocks
from atent.smoothing.stopping import BLOCK, GIVE_UP, Smoothing, rare_counts


class RivalTest:
    """A test of level alpha of "g predicts the label": under it the label is at least as likely as any rival class.

    Given how many draws were of the label or of the rival by each look, the draws of the label among them are binomial
    with a rate of 1/2 or more. So `rare_counts` at rate 1/2 gives the exact test; alpha is spent as the draws are made.
    With a single look it is the one-sided binomial test. A point is given up if the label leads clearly.
    """

    def __init__(self, how: Smoothing) -> None:
        self.how, self.both = how, list[int]()
        self.settled, self.rejected, self.next = False, False, how.looks[0]

    def look(self, rival: int, label: int) -> None:
        """Receive the counts of both classes after `next` draws."""
        self.both.append(rival + label)
        looks, done = self.how.looks, len(self.both)
        shares = [draws / looks[-1] for draws in looks[:done]]
        self.rejected = label <= rare_counts(0.5, self.both, self.how.alpha, shares)[-1]
        self.settled = self.rejected or done == len(looks) or leads_clearly(label, rival)
        if not self.settled:
            self.next = looks[done]


def leads_clearly(label: int, rival: int) -> bool:
    """Whether a test of the rival has little hope; no guarantee depends on it."""
    return lead_chance(label, rival) <= GIVE_UP


class Verdict(NamedTuple):
    """A point within l2 `radius` of the image, `size` away from it, and whether the test says that it is `broken`.

    `counts` is how often each class was predicted in the draws of the test. It is empty if the label led clearly in the
    n0 draws that selected the `rival`, so that the point was not tested.
    """

    radius: float
    size: float
    rival: int
    counts: dict[int, int]
    broken: bool


class Challenge:
    """An image whose points are tested, from the largest radius down; a `Case` of `run_cases`.

    `find(radius)` returns a point within the radius, and its distance. If the test rejects, the next radius is the
    largest below that distance. Otherwise the image is done: with this order all its tests together have level alpha.
    """

    def __init__(
        self,
        index: int,
        label: int,
        radii: Sequence[float],
        how: Smoothing,
        find: Callable[[float], tuple[Tensor, float]],
    ) -> None:
        self.index, self.label, self.how, self.find = index, label, how, find
        self.left = sorted({*radii})
        self.streams: dict[str, torch.Generator] = {}
        self.tested: list[Verdict] = []
        self.draws, self.done = 0, False
        self._aim()

    def _aim(self) -> None:
        """Find the point for the largest radius that is left, and request the draws that select its rival."""
        self.radius = self.left.pop()
        self.image, self.size = self.find(self.radius)
        self.counts: Counter[int] = Counter()
        self.test: RivalTest | None = None
        self.wanted: list[Block] = blocks(f"rival at {self.radius!r}", self.how.n0)

    def take(self, counts: Sequence[int]) -> None:
        self.counts.update(dict(enumerate(counts)))
        self.draws += sum(counts)

    def advance(self) -> None:
        seen = 0
        if self.test is None:
            self.rival = min((k for k in self.counts if k != self.label), key=lambda k: (-self.counts[k], k))
            hopeless = leads_clearly(self.counts[self.label], self.counts[self.rival])
            self.counts.clear()
            if hopeless:
                self._finish(broken=False)
                return
            self.test = RivalTest(self.how)
        else:
            seen = self.test.next
            self.test.look(self.counts[self.rival], self.counts[self.label])
        if self.test.settled:
            self._finish(self.test.rejected)
        else:
            self.wanted = blocks(f"test at {self.radius!r}", self.test.next)[seen // BLOCK :]

    def _finish(self, broken: bool) -> None:
        counts = {k: count for k, count in self.counts.most_common() if count}
        self.tested.append(Verdict(self.radius, self.size, self.rival, counts, broken))
        self.left = [radius for radius in self.left if broken and radius < self.size]
        self.done = not self.left
        if not self.done:
            self._aim()
