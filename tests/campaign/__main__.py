"""The campaign: `python -m campaign --kind recipes --cases 1000 --seed 0`, or `--only recipes:17` for one case."""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from campaign.kinds import KINDS
from campaign.verdict import Kind
from campaign.workers import Result, play_all, play_here, preload

RESULTS = Path(__file__).parents[2] / "results" / "campaign.jsonl"


@dataclass
class Tally:
    """What the cases of a kind came to."""

    kind: str
    cases: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[float, int] = (0.0, -1)
    failed: list[Result] = field(default_factory=list)

    def add(self, one: Result) -> None:
        self.cases += not one.skipped
        self.skipped += one.skipped
        self.slowest = max(self.slowest, (round(one.seconds, 2), one.case))
        self.largest = max(self.largest, (round(one.megabytes, 1), one.case))
        if one.faults:
            self.failed.append(one)


def main() -> int:
    chosen = _arguments()
    torch.set_num_threads(1)
    preload()
    place = Path(tempfile.mkdtemp(prefix="atent-campaign-", dir=_fast_folder()))
    try:
        if chosen.only:
            return _only(chosen.only, chosen.seed, place)
        kinds = [KINDS[name] for name in chosen.kind or KINDS]
        tallies = [_play(kind, chosen, place) for kind in kinds]
    finally:
        os.chdir("/")
        _remove(place)
    _print(tallies)
    if chosen.out:
        _record(tallies, chosen)
    return int(any(tally.failed for tally in tallies))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="Repeatable. Default: all.")
    parser.add_argument("--cases", type=int, help="Cases of each kind. Default: as the full campaign has them.")
    parser.add_argument("--short", action="store_true", help="The form of CI: two minutes on two cores.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="Number of the first case.")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="Repeat one case and print what it did.")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--out",
        type=lambda text: Path(text).resolve(),
        help=f"Append a row per kind to this file, e.g. results/{RESULTS.name}.",
    )
    return parser.parse_args()


def _only(text: str, seed: int, place: Path) -> int:
    name, _, number = text.rpartition(":")
    kind = KINDS[name]
    _prepare(kind, place)
    found = play_here(kind, int(number), seed, place)
    print(f"{text}: {found.what}\n{found.seconds:.2f} s, {found.megabytes:.0f} MB")
    for fault in found.faults:
        print(f"FAULT: {fault}")
    return int(bool(found.faults))


def _prepare(kind: Kind, place: Path) -> None:
    home = Path.cwd()
    kind.prepare(place / kind.name.replace(" ", "-"))
    os.chdir(home)


def _play(kind: Kind, chosen: argparse.Namespace, place: Path) -> Tally:
    _prepare(kind, place)
    count = chosen.cases or (kind.short if chosen.short else kind.full)
    tally, began, told, used = Tally(kind.name), time.monotonic(), time.monotonic(), _cpu()
    for one in play_all(kind, range(chosen.first, chosen.first + count), chosen.seed, place, chosen.workers):
        tally.add(one)
        if one.faults:
            print(f"FAILED {one.kind}:{one.case} (seed {chosen.seed}): {'; '.join(one.faults)}", flush=True)
            print(f"    {one.what}", flush=True)
        if time.monotonic() - told > 15:
            told = time.monotonic()
            print(f"{kind.name}: {tally.cases} of {count}, {len(tally.failed)} failed", file=sys.stderr, flush=True)
    tally.seconds, tally.cpu = time.monotonic() - began, _cpu() - used
    return tally


def _cpu() -> float:
    """The CPU seconds of all workers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print(tallies: list[Tally]) -> None:
    print(f"{'kind':24}{'cases':>8}{'failures':>10}{'skipped':>9}{'seconds':>9}{'CPU':>8}   slowest, largest case")
    for one in tallies:
        (slow, which), (large, case) = one.slowest, one.largest
        print(
            f"{one.kind:24}{one.cases:>8,}{len(one.failed):>10,}{one.skipped:>9,}{one.seconds:>9.1f}{one.cpu:>8.1f}   "
            f"{slow:.1f} s ({which}), {large:.0f} MB ({case})"
        )


def _record(tallies: list[Tally], chosen: argparse.Namespace) -> None:
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with chosen.out.open("a", encoding="utf-8") as file:
        for one in tallies:
            faults = Counter(fault.partition(":")[0] for result in one.failed for fault in result.faults)
            row = {
                "kind": one.kind,
                "seed": chosen.seed,
                "first": chosen.first,
                "cases": one.cases,
                "failures": len(one.failed),
                "skipped": one.skipped,
                "seconds": round(one.seconds, 1),
                "cpu_seconds": round(one.cpu, 1),
                "workers": chosen.workers,
                "slowest": one.slowest,
                "largest": one.largest,
                "faults": dict(faults),
                "failed": [result.case for result in one.failed][:100],
            }
            file.write(json.dumps(row) + "\n")


def _fast_folder() -> str | None:
    """A folder in memory, where there is one: the cases write many small files."""
    memory = Path("/dev/shm")
    return str(memory) if os.access(memory, os.W_OK) else None


def _remove(place: Path) -> None:
    import shutil

    shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
