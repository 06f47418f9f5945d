"""Training steps of two processes with one thread each, compared with one process with two threads.

    python benchmarks/distributed.py [--rounds N] [--steps N] [--networks small-cnn,resnet-20] [--processes N]

A step is PGD-AT with K = 10 on a global batch of 128. Both forms stay alive and run alternately; the ratio of times is
of the median rounds. Also: the peak memory of a process, and the bytes that a process sends in a step, compared with
the bytes of the gradients. It needs as many idle cores as processes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atent.defenses import PgdAt
from atent.machine import prepare
from atent.models import MODELS
from atent.parallel.join import joined
from atent.randomness import derive
from atent.training.step import train_step
from step import BATCH, SETTINGS


class Form:
    """The processes of one form; they wait for orders."""

    def __init__(self, network: str, processes: int, threads: int) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port), "WORLD_SIZE": str(processes)}
        job |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--worker", network]
        self.workers = [
            subprocess.Popen(
                command,
                env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]

    def run(self, steps: int) -> list[dict[str, Any]]:
        """What each process measured in so many steps."""
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{steps}\n")
            worker.stdin.flush()
        return [json.loads(worker.stdout.readline()) for worker in self.workers if worker.stdout is not None]

    def end(self) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()


def work(network: str) -> None:
    """A process: reads a number of steps, makes them, and prints what they took, until there are no more."""
    orders, answers = sys.stdin, sys.stdout
    shape, threat, *_ = SETTINGS[network]
    prepare(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    model = MODELS[network](shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = torch.rand(BATCH, *shape.image), torch.randint(shape.classes, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    gradients = sum(one.numel() * one.element_size() for one in model.parameters())
    sent, reduce = 0, dist.all_reduce

    def counting(tensor: torch.Tensor, *arguments: Any) -> None:
        nonlocal sent
        sent += tensor.numel() * tensor.element_size()
        reduce(tensor, *arguments)

    with joined() as team, mock.patch.object(dist, "all_reduce", counting):
        mine = x[team.part(BATCH)].contiguous(memory_format=torch.channels_last), y[team.part(BATCH)]
        for line in orders:
            team.wait()
            sent, began = 0, time.perf_counter()
            for k in range(int(line)):
                generator = team.share(derive(0, "batch", k), BATCH)
                train_step(model, optimizer, PgdAt(steps=10), *mine, threat, generator)
                team.largest(0)  # whether to stop, as `fit` asks after each batch
            took = time.perf_counter() - began
            found = {"seconds": took, "sent": sent / int(line), "gradients": gradients, "memory": peak_memory()}
            print(json.dumps(found), file=answers, flush=True)


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def compare(network: str, processes: int, rounds: int, steps: int) -> None:
    alone, several = Form(network, 1, processes), Form(network, processes, 1)
    for form in (alone, several):
        form.run(1)  # the first step allocates
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        (one,), parts = alone.run(steps), several.run(steps)
        times.append((one["seconds"] / steps, max(part["seconds"] for part in parts) / steps))
    for form in (alone, several):
        form.end()
    ours, theirs = median(pair[0] for pair in times), median(pair[1] for pair in times)
    memory = max(part["memory"] for part in parts)
    print(f"{network}: {processes} processes over one with {processes} threads: throughput x {ours / theirs:.2f}")
    print(f"  a step: {1000 * ours:.0f} ms with threads, {1000 * theirs:.0f} ms with processes")
    print(f"  ratios of the rounds: {', '.join(f'{one / other:.2f}' for one, other in times)}")
    print(f"  peak memory of a process: {memory / 1e6:.0f} MB of {processes}, {one['memory'] / 1e6:.0f} MB alone")
    print(f"  sent in a step: {parts[0]['sent']:,.0f} bytes; the gradients have {parts[0]['gradients']:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in a round")
    parser.add_argument("--networks", default="small-cnn,resnet-20")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker)
    else:
        for name in given.networks.split(","):
            compare(name, given.processes, given.rounds, given.steps)
