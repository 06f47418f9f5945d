"""The intervals of a sampled evaluation, against probabilities of all paths of counts in exact fractions."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb

import pytest

from atent.errors import UserError
from atent.evaluation.estimate import draw_order
from atent.evaluation.sampling import Estimate, Goal, Law

SMALL = [
    Law(images=20, survivors=20, batch=3, confidence=0.8),  # one point is less than an image
    Law(images=500, survivors=30, batch=7, confidence=0.95),  # one point is five images
    Law(images=800, survivors=40, batch=9, confidence=0.5),
    Law(images=1000, survivors=60, batch=12, confidence=0.9),
]


def misses(law: Law, breaking: int) -> tuple[Fraction, Fraction]:
    """The probabilities that some interval lies below `breaking`, and that some lies above, over all looks."""
    total = law.survivors
    alive, missed = {0: Fraction(1)}, [Fraction(0), Fraction(0)]
    for look, (last, draws) in enumerate(pairwise((0, *law.looks))):
        reached: dict[int, Fraction] = {}
        for broken, probability in alive.items():
            for more in range(min(draws - last, breaking - broken) + 1):
                ways = comb(breaking - broken, more) * comb(total - last - breaking + broken, draws - last - more)
                step = Fraction(ways, comb(total - last, draws - last))
                reached[broken + more] = reached.get(broken + more, Fraction(0)) + probability * step
        alive = {}
        for broken, probability in reached.items():
            low, high = law.at(look, broken)
            if low <= breaking <= high:
                alive[broken] = probability
            else:
                missed[breaking < low] += probability
    assert sum(alive.values()) + sum(missed) == 1
    return missed[0], missed[1]


@pytest.mark.parametrize("law", SMALL, ids=str)
def test_all_intervals_hold_together_with_the_confidence_asked_for(law: Law) -> None:
    allowed = (1 - law.confidence) / 2
    found = [misses(law, breaking) for breaking in range(law.survivors + 1)]
    for side in zip(*found, strict=True):
        assert float(max(side)) <= allowed * (1 + 1e-9)
        assert float(max(side)) > 0.1 * allowed  # not valid by being wide
        assert float(max(side)) > 0.7 * allowed or law.images < 100


@pytest.mark.parametrize("law", SMALL, ids=str)
def test_an_interval_contains_what_is_known_and_grows_with_the_count(law: Law) -> None:
    for look, draws in enumerate(law.looks):
        intervals = [law.at(look, broken) for broken in range(draws + 1)]
        for broken, (low, high) in enumerate(intervals):
            assert broken <= low <= high <= law.survivors - draws + broken
        for (low, high), (next_low, next_high) in pairwise(intervals):
            assert low <= next_low
            assert high <= next_high


def path(law: Law, breaking: int) -> list[int]:
    """Counts of a sample that is as even as it can be."""
    return [round(draws * breaking / law.survivors) for draws in law.looks]


@pytest.mark.parametrize("breaking", [0, 1, 30, 60])
def test_intervals_are_nested_and_end_in_a_point(breaking: int) -> None:
    law = SMALL[-1]
    counts = path(law, breaking)
    intervals = [law.bounds(counts[:n]) for n in range(len(counts) + 1)]
    assert intervals[0] == (0, 60)
    assert intervals[-1] == (breaking, breaking)
    for (low, high), (next_low, next_high) in pairwise(intervals):
        assert low <= next_low <= breaking <= next_high <= high


def test_contradicting_looks_leave_the_last_interval() -> None:
    law = Law(images=1000, survivors=1000, batch=100)
    counts = [0] * (len(law.looks) - 2)
    step = law.looks[-1] - law.looks[-2]
    assert law.bounds([*counts, 0, step]) == (step, step)


@pytest.mark.parametrize(
    ("survivors", "batch", "looks"),
    [(0, 50, ()), (7, 50, (7,)), (50, 50, (50,)), (120, 50, (50, 100, 120)), (3, 1, (1, 2, 3))],
)
def test_looks_are_multiples_of_the_batch_and_end_with_all_survivors(
    survivors: int, batch: int, looks: Sequence[int]
) -> None:
    law = Law(images=200, survivors=survivors, batch=batch)
    assert law.looks == looks
    assert law.bounds([]) == (0, survivors)
    assert law.bounds(looks) == (survivors, survivors)  # all broken
    assert law.estimate([0] * len(looks)) == (survivors / 2, survivors / 2, survivors / 2)


def test_ten_thousand_images_to_one_point() -> None:
    """9,500 survivors of which 3 % break: a fixed sample needs about 1,000 draws for +- 1 point."""
    law = Law(images=10_000, survivors=9_500, batch=50)
    late = [(look, round(0.03 * draws)) for look, draws in enumerate(law.looks) if 1000 <= draws <= 1250]
    lows, highs = zip(*(law.at(*seen) for seen in late), strict=True)
    assert max(lows) < 0.03 * 9_500 < min(highs)
    assert min(highs) - max(lows) <= 200


def test_the_estimate_is_the_survivors_times_one_minus_the_break_rate() -> None:
    law = Law(images=1000, survivors=900, batch=100)
    low, high = law.bounds([10, 20])
    assert law.estimate([10, 20]) == (81.0, (900 - high) / 10, (900 - low) / 10)
    assert law.estimate([]) == (90.0, 0.0, 90.0)  # what phase one measured; nothing was drawn


def test_it_is_known_beforehand_how_many_draws_the_best_case_needs() -> None:
    law = Law(images=1000, survivors=900, batch=100)
    needed = law.expected_draws(Goal(1))
    before = law.looks[: law.looks.index(needed)]
    assert law.estimate([0] * (len(before) + 1)).half_width <= 1 < law.estimate([0] * len(before)).half_width
    assert law.expected_draws(Goal(0.01)) == 900
    assert Law(images=1000, survivors=20, batch=10).expected_draws(Goal(1)) == 0


def test_the_order_is_a_permutation_fixed_by_the_seed_and_keeps_places() -> None:
    survivors = [index for index in range(1000) if index % 7]
    order = draw_order(survivors, seed=3)
    assert sorted(order) == survivors
    assert draw_order(survivors[::-1], seed=3) == order != draw_order(survivors, seed=4)
    fewer = set(survivors[::2])
    assert draw_order(sorted(fewer), seed=3) == [index for index in order if index in fewer]
    half = sum(index < 500 for index in order[: len(order) // 2]) / (len(order) // 2)
    assert half == pytest.approx(0.5, abs=0.1)  # four standard errors


@pytest.mark.parametrize(
    ("goal", "low", "high", "verdict"),
    [
        (Goal(within=1), 91.0, 93.0, "within"),
        (Goal(within=1), 90.9, 93.0, None),
        (Goal(claim=92.81), 92.81, 94.0, "accepted"),
        (Goal(claim=92.81), 92.80, 94.0, None),
        (Goal(claim=92.81), 90.0, 92.81, None),
        (Goal(claim=92.81), 90.0, 92.80, "refuted"),
        (Goal(within=1, claim=90), 91.0, 93.0, "accepted"),
        (Goal(within=1, claim=92), 91.0, 93.0, "within"),
        (Goal(), 92.0, 92.0, None),
    ],
)
def test_a_goal_ends_the_run(goal: Goal, low: float, high: float, verdict: str | None) -> None:
    assert goal.reached(Estimate((low + high) / 2, low, high)) == verdict


LAW = {"images": 100, "survivors": 90, "batch": 10}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Goal(within=0), r"within 0; allowed: .* above 0"),
        (lambda: Goal(within=float("nan")), r"within nan; allowed: .* above 0"),
        (lambda: Goal(claim=0), r"claim 0; allowed: percent above 0 and below 100"),
        (lambda: Goal(claim=100), r"claim 100; allowed"),
        (lambda: Law(**LAW, confidence=1), r"confidence 1; allowed: above 0 and below 1"),
        (lambda: Law(**LAW | {"batch": 0}), r"batch 0; allowed: 1 or more"),
        (lambda: Law(**LAW | {"survivors": 101}), r"survivors 101; allowed: 0 \.\. 100"),
        (lambda: Law(**LAW).bounds([3, 2]), r"counts \[3, 2\]; allowed: .* 0 \.\. 10 more"),
        (lambda: Law(**LAW).bounds([11]), r"counts \[11\]; allowed: .* 0 \.\. 10 more"),
        (lambda: Law(**LAW).bounds([0] * 10), r"10 counts .*; allowed: at most 9"),
    ],
)
def test_bad_input_is_one_line(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(UserError, match=f"^{message}.*$") as error:
        wrong()
    assert "\n" not in str(error.value)
