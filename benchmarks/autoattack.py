"""`strong` against the library's AutoAttack: accuracy, passes and CPU time on the same images, batch by batch.

python benchmarks/autoattack.py measure runs/demo --data mnist --data-dir DATA --images 500
python benchmarks/autoattack.py measure trades-mnist-smallcnn.pt --model small-cnn --data mnist --data-dir DATA \
    --called trades-authors
python benchmarks/autoattack.py table

The two take turns on each batch, in one process with one thread, and CPU time is measured, so that other work disturbs
both alike. `measure` appends a row per batch to results/autoattack-ratio.jsonl and skips batches that are there.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atent.attacks import make_attack
from atent.evaluation.attack import attack_batch
from atent.evaluation.suites import choose_attacks
from atent.evaluation.target import Target, open_target
from atent.machine import prepare
from atent.storage.rows import Rate, rate
from atent.threat import Threat

ROWS = Path(__file__).parents[1] / "results" / "autoattack-ratio.jsonl"
THREAT, BATCH = Threat("linf", 0.3), 50
Row = dict[str, Any]


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def measure(target: Target, called: str, images: int) -> Iterator[Row]:
    """A row for each batch that has none yet."""
    done = {row["first"] for row in rows() if row["network"] == called}
    strong = choose_attacks(None, [], "strong").plan(target, [THREAT])[0].attack
    attacks = {"strong": strong, "autoattack": make_attack({"name": "autoattack"})}
    for first in range(0, images, BATCH):
        if first in done:
            continue
        row: Row = {"network": called, "threat": str(THREAT), "first": first, "images": min(BATCH, images - first)}
        for name, attack in attacks.items():
            began = time.process_time()
            found = attack_batch(target.network, target.images, slice(first, first + BATCH), attack, THREAT)
            row[name] = {
                "robust": [one["index"] for one in found.rows if one["robust"]],
                "forward": found.cost.forward,
                "backward": found.cost.backward,
                "cpu_seconds": round(time.process_time() - began, 2),
            }
        yield row


def table() -> None:
    """One line per network: accuracies, passes and CPU seconds per image, and the ratios."""
    print("| network | images | strong % | AutoAttack % | passes per image | ratio | CPU s per image | ratio |")
    print("|---|---:|---:|---:|---|---:|---|---:|")
    every = rows()
    for called in dict.fromkeys(row["network"] for row in every):
        mine = [row for row in every if row["network"] == called]
        count = sum(row["images"] for row in mine)
        accuracy, passes, seconds = dict[str, Rate](), dict[str, float](), dict[str, float]()
        for name in ("strong", "autoattack"):
            parts = [row[name] for row in mine]
            robust = sum(len(part["robust"]) for part in parts)
            accuracy[name] = rate([True] * robust + [False] * (count - robust))
            passes[name] = sum(part["forward"] + part["backward"] for part in parts) / count
            seconds[name] = sum(part["cpu_seconds"] for part in parts) / count
        cells: list[object] = [called, count, accuracy["strong"], accuracy["autoattack"]]
        for cost, digits in ((passes, ",.0f"), (seconds, ".2f")):
            ours, theirs = cost["strong"], cost["autoattack"]
            cells += [f"{ours:{digits}} / {theirs:{digits}}", f"{theirs / ours:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    measuring = commands.add_parser("measure")
    measuring.add_argument("target")
    measuring.add_argument("--called")
    measuring.add_argument("--model")
    measuring.add_argument("--data")
    measuring.add_argument("--data-dir", type=Path)
    measuring.add_argument("--images", type=int, default=500)
    given = parser.parse_args()
    if given.command == "table":
        table()
        return
    prepare(1)
    target = open_target(given.target, model=given.model, data=given.data, data_dir=given.data_dir)
    for row in measure(target, given.called or Path(given.target).name, given.images):
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
