"""The tables of `entropy.py`: accuracies with standard errors, and differences by seed."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

Row = dict[str, Any]


def mean(bits: str) -> float:
    return bits.count("1") / len(bits)


class Arm(NamedTuple):
    """The rows of an arm at one learning rate, by seed."""

    name: str
    lr: float
    seeds: dict[int, Row]

    def of(self, seeds: Iterable[int]) -> "Arm":
        return self._replace(seeds={seed: self.seeds[seed] for seed in sorted(seeds)})

    def accuracy(self, measure: str) -> float:
        return statistics.fmean(mean(row["right"][measure]) for row in self.seeds.values())

    def uncertainty(self, measure: str) -> float:
        """The standard error of the accuracy: over seeds; of one seed over its images."""
        accuracies = [mean(row["right"][measure]) for row in self.seeds.values()]
        over_seeds, images = error(accuracies), len(next(iter(self.seeds.values()))["right"][measure])
        return (accuracies[0] * (1 - accuracies[0]) / images) ** 0.5 if over_seeds is None else over_seeds


def table(rows: list[Row], against: str | None, *, together: bool = False) -> str:
    """A table for each data set, threat, budget and kind of evaluation, the most accurate arm first.

    The last column compares with the arm `against`, or where it is missing with the first one in the file, at its
    better learning rate. Networks of a learning rate that was not chosen are left out.
    With `together` arms with different budgets are in one table, named ARM@MINUTES.
    """
    lines: list[str] = []
    rows = [row for row in rows if row["right"]]
    if together:
        rows = [{**row, "arm": f"{row['arm']}@{row['minutes']:g}"} for row in rows]

    def setting(row: Row) -> tuple[str, str, str, str]:
        if "2k" in row["arm"].partition("@")[0].split("+"):
            length = "40 epochs of 2,000 images"
        else:
            length = "several budgets" if together else f"{row['minutes']:g} minutes of one core each"
        threat = "l2 2" if row["arm"].startswith("l2-") else "sigma .5" if "r 1" in row["right"] else "linf .3"
        return row["data"], threat, length, ", ".join(row["right"])

    for (data, threat, length, measures), group in groupby(sorted(rows, key=setting), setting):
        names = measures.split(", ")
        arms = collected(sorted(group, key=rows.index))
        main = names[-1]
        rivals = [arm for arm in arms if arm.name == against] or [arm for arm in arms if arm.name == arms[0].name]
        rival = max(rivals, key=lambda arm: arm.accuracy(main))
        lines += [f"{data}, {threat}, {length}; difference of {main} from {rival.name}", ""]
        lines += [f"| arm | lr | images | seeds | {' | '.join(names)} | difference |"]
        lines += [f"|---|---:|---:|---:|{'---:|' * (len(names) + 1)}"]
        for arm in sorted(arms, key=lambda arm: -arm.accuracy(main)):
            some = next(iter(arm.seeds.values()))
            failed = sum(row["failed"] is not None for row in arm.seeds.values())
            seeds = f"{len(arm.seeds)}{f', {failed} failed' if failed else ''}"
            cells = [arm.name, f"{arm.lr:g}", f"{some['images']:,}", seeds]
            cells += [shown(arm, measure) for measure in names]
            cells += [difference(arm, rival, main) if arm is not rival else ""]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def by_noise(rows: Iterable[Row], searches: Iterable[str], rest: str, minutes: float, noise: str = "t0.5") -> str:
    """What noise changes on MNIST: accuracy under `strong` of each SEARCH+REST, and of SEARCH+REST+NOISE.

    Where both have common seeds, both columns are over these, at the learning rate with most of them; else the first
    is over all its seeds. Of rates with as many seeds the table has the one that is more accurate without noise.
    """
    known = [row for row in rows if row["minutes"] == minutes and row["data"] == "mnist" and row["right"]]
    arms = {(arm.name, arm.lr): arm for arm in collected(known)}
    lines = ["| search | lr | images | seeds | without noise | with noise | difference |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for search in searches:
        pairs = []
        for (name, lr), plain in arms.items():
            if name == f"{search}+{rest}":
                noisy = arms.get((f"{name}+{noise}", lr))
                common = plain.seeds.keys() & noisy.seeds.keys() if noisy else set[int]()
                pairs.append((len(common), len(plain.seeds), plain.accuracy("strong"), plain, noisy, common))
        if not pairs:
            continue
        *_, plain, noisy, common = max(pairs, key=lambda pair: pair[:3])
        if noisy and common:
            plain, noisy = (arm.of(common) for arm in (plain, noisy))
        some = next(iter(plain.seeds.values()))
        failed = sum(row["failed"] is not None for row in plain.seeds.values())
        seeds = f"{len(plain.seeds)}{f', {failed} failed' if failed else ''}"
        cells = [f"`{search}`", f"{plain.lr:g}", f"{some['images']:,}", seeds, shown(plain, "strong")]
        cells += [shown(noisy, "strong"), difference(noisy, plain, "strong")] if noisy and common else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def collected(rows: Iterable[Row]) -> list[Arm]:
    arms: dict[tuple[str, float], Arm] = {}
    for row in rows:
        arms.setdefault((row["arm"], row["lr"]), Arm(row["arm"], row["lr"], {})).seeds[row["seed"]] = row
    return list(arms.values())


def shown(arm: Arm, measure: str) -> str:
    return f"{100 * arm.accuracy(measure):.1f} ± {100 * arm.uncertainty(measure):.1f}"


def difference(arm: Arm, rival: Arm, measure: str) -> str:
    """The mean difference over common seeds, with its standard error over images, and over seeds if there are some."""

    def bits(arm: Arm, seed: int) -> str:
        return str(arm.seeds[seed]["right"][measure])

    by_seed = [
        [int(a) - int(b) for a, b in zip(bits(arm, seed), bits(rival, seed), strict=True)]
        for seed in sorted(arm.seeds.keys() & rival.seeds.keys())
    ]
    if not by_seed:
        return "no common seed"
    images = [one for of_seed in by_seed for one in of_seed]
    seeds = error([statistics.fmean(of_seed) for of_seed in by_seed])
    over_seeds = "" if seeds is None else f", seeds ± {100 * seeds:.1f}"
    return f"{100 * statistics.fmean(images):+.1f} (images ± {100 * (error(images) or 0.0):.1f}{over_seeds})"


def error(values: Sequence[float]) -> float | None:
    """The standard error of a mean; None of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
