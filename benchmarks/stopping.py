"""The number of draws when drawing stops early: our rule, and two others that are valid under optional stopping.

    python benchmarks/stopping.py [--n N] [--images N]

The counts are simulated, for images whose true radii follow a published curve (MNIST, LeNet, sigma .5, Gaussian
augmentation: 99.1 / 96.9 / 89.8 / 67.8 % at 0, .5, 1, 1.5; beyond 1.5 assumed: 35 % at 2, 10 % at 2.5, none at 3). No
network is run.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from atent.smoothing.bounds import certified_radius
from atent.smoothing.stopping import Smoothing

SIGMA, RADII = 0.5, (0.0, 0.5, 1.0, 1.5)
SHARES, LIMITS = (0.0, 0.009, 0.031, 0.102, 0.322, 0.65, 0.9, 1.0), (-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
Table = list[list[int]]


def union_bound(how: Smoothing) -> Table:
    """Clopper-Pearson at every look, alpha divided by their number."""
    level = how.alpha / len(how.looks)
    return [[_last(stats.binom.cdf(np.arange(t + 1), t, 1 - q) <= level) for t in how.looks] for q in _limits(how)]


def mixture(how: Smoothing) -> Table:
    """Ville's inequality for the likelihood ratio of p uniform above q to p = q, at every look."""
    table = []
    for q in _limits(how):
        line = []
        for t in how.looks:
            failed = np.arange(int(t * (1 - q)) + 1)
            agreed = t - failed
            above = np.log(np.maximum(special.betaincc(agreed + 1, failed + 1, q), 1e-300))
            ratio = special.betaln(agreed + 1, failed + 1) + above - np.log1p(-q)
            line.append(_last(ratio - special.xlogy(agreed, q) - special.xlog1py(failed, -q) >= -np.log(how.alpha)))
        table.append(line)
    return table


def _limits(how: Smoothing) -> list[float]:
    return [float(special.ndtr(goal / how.sigma)) for goal in how.goals]


def _last(holds: NDArray[np.bool_]) -> int:
    """The last of the counts 0, 1, ... up to which the condition holds; -1 if it does not hold for 0."""
    return len(holds) - 1 if holds.all() else int(holds.argmin()) - 1


def measure(how: Smoothing, counts: NDArray[np.int64]) -> tuple[float, list[float]]:
    """Mean draws, and the share of images certified at each radius."""
    draws, radii = 0, []
    for row in counts:
        test, place = how.test(), 0
        while not test.settled:
            test.look(int(row[place]))
            place += 1
        draws += how.looks[place - 1]
        found = test.radius()
        radii.append(-1.0 if found is None else found)
    return draws / len(counts), [float(np.mean(np.array(radii) >= radius)) for radius in RADII]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=3000)
    options = parser.parse_args()
    source = np.random.default_rng(0)
    p = special.ndtr(np.interp(source.random(options.images), SHARES, LIMITS) / SIGMA)
    rules = {"exact spending (ours)": None, "union bound": union_bound, "mixture martingale": mixture}
    for name, rule in rules.items():
        how = Smoothing(SIGMA, n=options.n, radii=RADII)
        if rule is not None:
            vars(how)["proving"] = rule(how)
        counts = np.random.default_rng(1).binomial(np.diff([0, *how.looks]), p[:, None]).cumsum(1)
        if rule is None:
            fixed = [certified_radius(int(agreed), options.n, SIGMA, how.alpha) for agreed in counts[:, -1]]
            shares = [sum(r is not None and r >= radius for r in fixed) / options.images for radius in RADII]
            print(f"{'all n draws':24} {options.n:9,.0f} draws  certified % {[round(100 * s, 1) for s in shares]}")
        draws, shares = measure(how, counts)
        print(f"{name:24} {draws:9,.0f} draws  certified % {[round(100 * s, 1) for s in shares]}")


if __name__ == "__main__":
    main()
