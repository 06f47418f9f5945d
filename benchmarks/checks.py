"""The cost of the checks of a batch (images, labels, threat, terms) in a training step of ten-step PGD.

    python benchmarks/checks.py [--threads N] [--rounds N]

A step checks twice: at the start of the defense, and in the inner loop. Steps and checks run alternately in one
process; figures are from the best rounds.
"""

import argparse

import torch

from atent.defenses import PgdAt, Term, terms
from atent.inputs import check_images, checked
from atent.training.step import train_step
from step import BATCH, SETTINGS, Bench, seconds

CHECKS = 100  # timed together: a single one is too short for the clock
GOAL = 0.01


def compare(name: str, rounds: int) -> tuple[float, float]:
    """The shortest time of a training step, and of its checks, in seconds."""
    bench = Bench(name, steps=10)
    defense = PgdAt(steps=10)
    logits = bench.model(bench.x)
    given = Term(logits.sum(1), logits, bench.x)

    def step() -> None:
        train_step(bench.model, bench.optimizer, defense, bench.x, bench.y, bench.threat, bench.generator)

    def checks() -> None:
        for _ in range(CHECKS):
            with checked(bench.model, bench.x, bench.y, bench.threat) as threat:
                check_images(bench.x, threat)
            list(terms(lambda *_: iter([given]), bench.model, bench.x, bench.y, threat, bench.generator))

    step()
    checks()
    found = [(seconds(step), seconds(checks) / CHECKS) for _ in range(rounds)]
    return min(step for step, _ in found), min(check for _, check in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, {options.rounds} rounds\n")
    for name in SETTINGS:
        step, check = compare(name, options.rounds)
        print(
            f"{name:10} step {1000 * step:7.0f} ms, checks {1000 * check:.3f} ms: {100 * check / step:.3f} % "
            f"(goal < {100 * GOAL:g} %)",
            flush=True,
        )


if __name__ == "__main__":
    main()
