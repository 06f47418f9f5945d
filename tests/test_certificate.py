"""Counts to radii: Cohen's formula, and certificates that fail no more often than alpha, however early they come."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from atent.errors import UserError
from atent.smoothing.bounds import ABSTAIN, certified_radius, draws_for, l2_radius, largest_radius, lower_bound, vote
from atent.smoothing.stopping import Smoothing, rare_counts
from atent.threat import Threat

ALPHA, SIGMA, TRIALS = 0.001, 0.5, 10_000
EARLY = Smoothing(SIGMA, n=2000, alpha=ALPHA, radii=(0.25, 0.5, 1.0))
EXACT = Smoothing(SIGMA, n=2000, alpha=ALPHA)
modes = pytest.mark.parametrize("how", [EXACT, EARLY], ids=["exact-n", "early"])
seeds = pytest.mark.parametrize("seed", [1, 2, 3])


@pytest.mark.parametrize("draws", [1, 17, 1000, 100_000])
@pytest.mark.parametrize("alpha", [0.2, 0.001, 1e-6])
def test_a_count_gives_the_radius_of_cohens_formula(draws: int, alpha: float) -> None:
    for agreed in {0, 1, draws // 2, draws // 2 + 1, (9 * draws) // 10, draws - 1, draws}:
        p = float(stats.beta.ppf(alpha, agreed, draws - agreed + 1)) if agreed else 0.0
        assert lower_bound(agreed, draws, alpha) == pytest.approx(p, abs=1e-12)
        radius = certified_radius(agreed, draws, SIGMA, alpha)
        if p < 0.5:
            assert radius is None
        else:
            assert radius == pytest.approx(SIGMA * stats.norm.ppf(p), abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "alpha"), [((80, 20), 0.001), ((60, 40, 3), 0.001), ((60, 40, 3), 0.1), ((5, 5), 0.9)]
)
def test_a_vote_is_the_two_sided_binomial_test(counts: tuple[int, ...], alpha: float) -> None:
    first, second = sorted(counts)[-1], sorted(counts)[-2]
    clear = stats.binomtest(first, first + second, 0.5).pvalue <= alpha
    assert vote(counts, alpha) == (0 if clear else ABSTAIN)
    assert vote(counts[::-1], alpha) == (len(counts) - 1 if clear else ABSTAIN)


def simulate(how: Smoothing, p: float, seed: int, trials: int = TRIALS) -> NDArray[np.float64]:
    """The radii of tests whose draws agree with probability p; -1: abstained."""
    increments = np.diff([0, *how.looks])
    counts = np.random.default_rng(seed).binomial(increments, p, size=(trials, len(increments))).cumsum(1)
    radii = np.full(trials, -1.0)
    known: dict[tuple[int, ...], float] = {}
    for k, row in enumerate(counts):
        test, place, key = how.test(), 0, tuple(row) if len(row) == 1 else ()
        if key in known:
            radii[k] = known[key]
            continue
        while not test.settled:
            assert test.next == how.looks[place]
            test.look(int(row[place]))
            place += 1
        if (radius := test.radius()) is not None:
            radii[k] = radius
        if key:
            known[key] = radii[k]
    return radii


@seeds
@modes
@pytest.mark.parametrize("distance", [0.0, 0.25, 0.5, 1.0])
def test_certificates_of_a_linear_classifier_fail_no_more_often_than_alpha(
    how: Smoothing, distance: float, seed: int
) -> None:
    """At this distance from its plane a linear classifier's noisy answers agree with probability Phi(distance / sigma).

    The distances are the radii asked for: a test is nearest to its limit there.
    """
    radii = simulate(how, float(stats.norm.cdf(distance / SIGMA)), seed)
    # Both procedures may say "at least this radius" at the distance itself: the open ball is what is certified.
    wrong = int((radii > distance).sum() if how is EXACT else (radii >= distance).sum())
    assert wrong <= stats.binom.ppf(0.999, TRIALS, ALPHA)


@pytest.mark.parametrize("p", [0.3, 0.5, 1 - 1e-9, 1.0])
@modes
def test_at_the_edges_nothing_false_is_said(how: Smoothing, p: float) -> None:
    radii = simulate(how, p, seed=4, trials=2000)
    if p <= 0.5:
        assert (radii < 0).mean() >= 1 - 3 * ALPHA
    else:
        assert (radii == (how.largest_radius if how is EXACT else 1.0)).mean() > 0.999


@pytest.mark.parametrize("rate", [0.5, 0.0228, 0.00135])
def test_rare_counts_are_as_rare_as_they_may_be(rate: float) -> None:
    """The probability that any look finds a rare count, against a recursion over every draw."""
    looks = [100, 300, 600, 1000, 5200]
    rare = rare_counts(rate, looks, ALPHA)
    assert rare == sorted(rare)
    alive, spent = np.zeros(looks[-1] + 2), 0.0
    alive[0] = 1
    for draw in range(1, looks[-1] + 1):
        alive[1:] = (1 - rate) * alive[1:] + rate * alive[:-1]
        alive[0] *= 1 - rate
        if draw in looks:
            limit = rare[looks.index(draw)] + 1
            spent += float(alive[:limit].sum())
            alive[:limit] = 0
    assert 0 < spent <= ALPHA
    assert spent + alive[rare[-1] + 1] > ALPHA  # one more would be too many


@seeds
def test_looking_often_at_the_fixed_test_would_fail_where_ours_does_not(seed: int) -> None:
    """Optional stopping: Cohen's bound, looked at as often as ours, is wrong many times more often than alpha."""
    distance = EARLY.goals[2]
    p = float(stats.norm.cdf(distance / SIGMA))
    increments = np.diff([0, *EARLY.looks])
    counts = np.random.default_rng(seed).binomial(increments, p, size=(TRIALS, len(increments))).cumsum(1)
    draws = np.array(EARLY.looks)
    bounds = np.asarray(stats.beta.ppf(ALPHA, counts, draws - counts + 1))
    allowed = stats.binom.ppf(0.999, TRIALS, ALPHA)
    assert (bounds > p).any(1).sum() > 2 * allowed
    assert (simulate(EARLY, p, seed) >= distance).sum() <= allowed


def test_the_largest_radius_is_the_same_early_as_with_all_draws() -> None:
    n = int(draws_for(1.5, SIGMA, ALPHA))
    assert largest_radius(SIGMA, n, ALPHA) >= 1.5 > largest_radius(SIGMA, n - 1, ALPHA)
    early = Smoothing(SIGMA, n=n, alpha=ALPHA, radii=(1.5,))
    assert early.proving[-1][-1] == 0
    assert all(count == -1 for count in early.proving[-1][:-1])


@pytest.mark.parametrize("radius", [0.0, 0.5, 1.0, 1.5])
def test_after_all_draws_nearly_the_same_counts_certify(radius: float) -> None:
    early = Smoothing(SIGMA, n=10_000, alpha=ALPHA, radii=(radius,))
    most = early.proving[-1][-1]  # disagreeing draws
    bounds = [
        certified_radius(10_000 - k, 10_000, SIGMA, factor * ALPHA) for k, factor in ((most, 1.1), (most + 1, 0.5))
    ]
    assert bounds[0] is not None
    assert bounds[0] >= radius
    assert bounds[1] is None or bounds[1] < radius


@pytest.mark.parametrize("n", [1000, 10_000, 100_000])
def test_radii_approach_the_distance_as_n_grows(n: int) -> None:
    distance = 0.6
    radii = simulate(Smoothing(SIGMA, n=n), float(stats.norm.cdf(distance / SIGMA)), seed=5, trials=200)
    assert (radii <= distance).mean() > 0.99
    p, slope = stats.norm.cdf(distance / SIGMA), stats.norm.pdf(distance / SIGMA) / SIGMA
    gap = stats.norm.isf(ALPHA) * (p * (1 - p) / n) ** 0.5 / slope  # of a normal bound, to first order
    assert distance - radii.mean() == pytest.approx(gap, rel=0.15)


def test_an_early_test_makes_fewer_draws() -> None:
    how = Smoothing(SIGMA, n=10_000, radii=(0.5, 1.0))
    for agreed_share, most in ((1.0, 800), (0.995, 1500), (0.9, 1500), (0.3, 200)):
        test, draws = how.test(), 0
        while not test.settled:
            draws = test.next
            test.look(round(agreed_share * draws))
        assert draws <= most, agreed_share


def test_goals_count_in_order() -> None:
    """A larger radius does not count before a smaller one, which its own test would allow now and then."""
    how = Smoothing(SIGMA, n=2000, radii=(0.5, 1.0))
    test = how.test()
    test.look(100)
    assert test.radius() == 0.5
    assert not test.settled
    only = how.test(only_predict=True)
    only.look(100)
    assert only.settled
    assert only.radius() == 0.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sigma": 0.0}, ["sigma 0", "> 0"]),
        ({"sigma": -1.0}, ["sigma -1"]),
        ({"sigma": float("nan")}, ["sigma nan"]),
        ({"n0": 0}, ["n0 0", "1 or more"]),
        ({"n": 0}, ["n 0", "1 or more"]),
        ({"alpha": 0.0}, ["alpha 0"]),
        ({"alpha": 1.0}, ["alpha 1"]),
        ({"radii": (-1.0,)}, ["radius -1"]),
        ({"n": 9}, ["n 9", "can only abstain", "10 or more"]),
        ({"sigma": 0.12, "n": 47_000, "radii": (0.435,)}, ["0.435", "cannot be proven", "47,808"]),
        ({"radii": (1000.0,)}, ["1000", "cannot be proven", "larger sigma"]),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        Smoothing(**{"sigma": 0.25, **settings})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_n_must_exceed_47000_for_the_papers_setting() -> None:
    radius = l2_radius(Threat.parse("linf:2/255"), 3 * 32 * 32)
    assert radius == pytest.approx(0.4347, abs=1e-4)
    assert draws_for(radius, 0.12, 0.001) == pytest.approx(47_400, rel=0.01)
    assert l2_radius(Threat("l2", 0.5), None) == 0.5
    with pytest.raises(UserError, match="input size d is not known"):
        l2_radius(Threat("linf", 0.1), None)
