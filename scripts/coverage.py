"""Do the intervals of `evaluation/sampling.py` hold, and how many draws do they take? Simulated populations.

python scripts/coverage.py        writes results/coverage.jsonl and prints the tables of docs/whole-test-set.md

The confidence sequence by the ratio of prior and posterior (Waudby-Smith and Ramdas 2020) and a sample whose size is
fixed in advance are computed for comparison.
"""

import argparse
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from atent.evaluation.sampling import Law
from atent.storage.files import write_rows

IMAGES, BATCH, TRIALS = 10_000, 50, 2000
POPULATIONS = [(10_000, breaking) for breaking in (0, 10, 100, 300, 1000)] + [(9_500, b) for b in (50, 163, 287)]
WITHINS = (2.0, 1.0, 0.5)
CLAIMS = (-1.0, -0.01, 0.0, 0.01, 1.0)  # points above the truth: up to 0 the claim is right
PRIOR = (1, 30)

Counts = NDArray[np.int64]
Interval = Callable[[int, int], tuple[int, int]]  # of a look and its count


def prior_posterior(law: Law) -> Interval:
    """All B with prior / posterior below 1 / alpha; for B survivors a beta-binomial prior."""
    a, b = PRIOR
    every = np.arange(law.survivors + 1)
    log_factorial = special.gammaln(every + 1.0)

    def choose(n: Any, k: Any) -> Any:
        return log_factorial[n] - log_factorial[k] - log_factorial[n - k]

    @cache
    def at(look: int, broken: int) -> tuple[int, int]:
        draws = law.looks[look]
        possible = every[broken : law.survivors - draws + broken + 1]
        before = choose(draws, broken) + special.betaln(broken + a, draws - broken + b) - special.betaln(a, b)
        likely = choose(possible, broken) + choose(law.survivors - possible, draws - broken)
        ratio = before - likely + choose(law.survivors, draws)
        kept = possible[ratio < -math.log(1 - law.confidence)]
        return int(kept[0]), int(kept[-1])

    return at


def fixed_sample(law: Law, breaking: int, within: float) -> int:
    """The fewest draws, fixed in advance, whose exact interval at the expected count is within so many points."""
    alpha, every = (1 - law.confidence) / 2, range(law.survivors + 1)

    def wide(draws: int) -> bool:
        count = round(draws * breaking / law.survivors)
        few, many = stats.hypergeom.cdf, stats.hypergeom.sf
        high = bisect_left(every, True, key=lambda b: few(count, law.survivors, b, draws) <= alpha) - 1
        low = bisect_left(every, True, key=lambda b: many(count - 1, law.survivors, b, draws) > alpha)
        return 100 * (high - low) / law.images > 2 * within

    return next(draws for draws in range(law.batch, law.survivors + 1, law.batch) if not wide(draws))


def sample(law: Law, breaking: int, rng: np.random.Generator) -> Counts:
    """The broken images at every look, for all trials: a row each."""
    counts, last = [np.zeros(TRIALS, dtype=np.int64)], 0
    for draws in law.looks:
        left = breaking - counts[-1]
        counts.append(counts[-1] + rng.hypergeometric(left, law.survivors - last - left, draws - last))
        last = draws
    return np.stack(counts[1:], axis=1)


def intervals(at: Interval, counts: Counts) -> tuple[Counts, Counts]:
    """The ends of all intervals, as `Law.bounds` combines the looks."""
    own = np.empty((2, *counts.shape), dtype=np.int64)
    for look, column in enumerate(counts.T):
        found, place = np.unique(column, return_inverse=True)
        own[:, :, look] = np.array([at(look, int(count)) for count in found]).T[:, place]
    low, high = np.maximum.accumulate(own[0], axis=1), np.minimum.accumulate(own[1], axis=1)
    empty = low > high
    return np.where(empty, own[0], low), np.where(empty, own[1], high)


def runs(law: Law, breaking: int, low: Counts, high: Counts) -> list[dict[str, Any]]:
    """For each goal how often an interval up to the stop missed the truth, or the verdict was wrong; and the draws."""
    truth = law.survivors - breaking
    worst, best = law.survivors - high, law.survivors - low  # survivors that stay classified correctly
    missed = np.logical_or.accumulate((low > breaking) | (high < breaking), axis=1)
    goals = {f"within {within:g}": 100 * (high - low) / law.images <= 2 * within for within in WITHINS}
    wrong = dict.fromkeys(goals, missed)
    for points in CLAIMS:
        claim = truth + round(points * law.images / 100)
        if 0 < claim < law.images:
            name = f"claim {points:+g}" if points else "claim at the truth"
            accepted, refuted = worst >= claim, best < claim
            goals[name], wrong[name] = accepted | refuted, missed | (refuted if points <= 0 else accepted)
    rows = []
    for goal, reached in goals.items():
        reached[:, -1] = True
        stop = reached.argmax(axis=1)
        misses = int(np.take_along_axis(wrong[goal], stop[:, None], axis=1).sum())
        rows.append({"goal": goal, "misses": misses, "draws": float(np.mean(np.array(law.looks)[stop]))})
    return rows


def simulate() -> list[dict[str, Any]]:
    rows = []
    laws = {survivors: Law(IMAGES, survivors, BATCH) for survivors, _ in POPULATIONS}
    for survivors, breaking in POPULATIONS:
        law = laws[survivors]
        counts = sample(law, breaking, np.random.default_rng([survivors, breaking]))
        for name, at in (("exact", law.at), ("prior-posterior", prior_posterior(law))):
            about = {"law": name, "survivors": survivors, "breaking": breaking, "trials": TRIALS}
            rows += [about | row for row in runs(law, breaking, *intervals(at, counts))]
        rows += [
            {"law": "fixed", "survivors": survivors, "breaking": breaking, "goal": f"within {within:g}"}
            | {"draws": fixed_sample(law, breaking, within)}
            for within in WITHINS
        ]
        print(f"{breaking} of {survivors}", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A line per population and goal: mean draws of each law, and misses in percent."""
    found = {(row["survivors"], row["breaking"], row["goal"], row["law"]): row for row in rows}
    lines = [
        "| survivors | break | goal | fixed sample | exact | misses % | prior-posterior | misses % |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for survivors, breaking, goal in dict.fromkeys(key[:3] for key in found):
        cells = [f"{survivors:,}", f"{breaking:,}", goal]
        fixed = found.get((survivors, breaking, goal, "fixed"))
        cells.append(f"{fixed['draws']:,}" if fixed else "")
        for law in ("exact", "prior-posterior"):
            row = found[survivors, breaking, goal, law]
            cells += [f"{row['draws']:,.0f}", f"{100 * row['misses'] / row['trials']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def allowed() -> float:
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / TRIALS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/coverage.jsonl"))
    out = parser.parse_args().out
    rows = simulate()
    write_rows(out, rows)
    print(table(rows))
    worst = max(row["misses"] / row["trials"] for row in rows if "misses" in row)
    print(
        f"largest share of misses {100 * worst:.1f} %, allowed 5 % and three standard errors: {100 * allowed():.1f} %"
    )


if __name__ == "__main__":
    main()
