"""The cost of an ATENT step with the paper's moving average at several K, compared with bare passes and a direct form.

    python benchmarks/step.py [--threads N] [--rounds N]      about five minutes on an idle core

All forms of one comparison run alternately in one process with the same memory layout and allocator; figures are ratios
of CPU time in the best rounds. The last ratio compares our best settings (channels last, freed memory kept) with the
direct form ("straightforward") with default layout and allocator; each runs in its own process, alternately.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from atent.defenses import Atent
from atent.machine import keep_freed_memory
from atent.models import MODELS, Shape
from atent.threat import Threat
from atent.training.step import train_step

SETTINGS = {
    "small-cnn": (Shape((1, 28, 28), 10), Threat("linf", 0.3), 40, 2.6),
    "resnet-20": (Shape((3, 32, 32), 10), Threat("linf", 8 / 255), 10, 1.9),
}
BATCH = 128


class Bench:
    """One network with a batch, and the forms of a training step with it."""

    def __init__(self, name: str, steps: int | None = None, channels_last: bool = True) -> None:
        shape, self.threat, default_steps, _ = SETTINGS[name]
        self.steps = steps or default_steps
        torch.manual_seed(0)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = MODELS[name](shape).to(memory_format=layout)  # type: ignore[call-overload]
        self.x = torch.rand(BATCH, *shape.image).to(memory_format=layout)
        self.y = torch.randint(shape.classes, (BATCH,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.generator = torch.Generator().manual_seed(0)

    def atent(self, mode: str) -> Atent:
        return Atent(steps=self.steps, noise=1e-3, share=0.9, project="last", mode=mode)  # type: ignore[arg-type]

    def ours(self, mode: str) -> None:
        """The library's own training step."""
        defense = self.atent(mode)
        train_step(self.model, self.optimizer, defense, self.x, self.y, self.threat, self.generator)

    def bare(self, mode: str, shared: bool = False) -> None:
        """Only the passes that such a step needs: K input gradients, and a full pass per sample with weight gradients.

        `shared`: all full passes except the last also give input gradients, as ours do in train mode.
        """
        defense = self.atent(mode)
        carrying = sum(share > defense.tolerance for share in defense.shares())
        self.model.train(mode == "train")
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for _ in range(self.steps - (carrying - 1 if shared else 0)):
            point = self.x.detach().requires_grad_()
            torch.autograd.grad(functional.cross_entropy(self.model(point), self.y, reduction="sum"), point)
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        self.model.train()
        self.optimizer.zero_grad()
        for k in range(carrying):
            point = self.x.detach().requires_grad_(shared and k < carrying - 1)
            functional.cross_entropy(self.model(point), self.y).backward()
        self.optimizer.step()

    def straightforward(self) -> None:
        """The algorithm as printed: weight gradients in the chain, two passes per sample, K graphs."""
        model, x, eps, step = self.model.train(), self.x, self.threat.eps, 2 * self.threat.eps / self.steps
        point = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        average: Tensor | float = 0.0
        for k in range(self.steps):
            point = point.detach().requires_grad_()
            functional.cross_entropy(model(point), self.y).backward()
            assert point.grad is not None
            point = point.detach() + step * point.grad.sign() + (2 * step) ** 0.5 * 1e-3 * torch.randn_like(x)
            if k == self.steps - 1:
                point = torch.min(torch.max(point, x - eps), x + eps)
            point = point.clamp(0, 1)
            average = 0.1 * average + 0.9 * functional.cross_entropy(model(point), self.y)
        self.optimizer.zero_grad()
        assert isinstance(average, Tensor)
        average.backward()
        self.optimizer.step()


def seconds(form: Callable[[], None]) -> float:
    """The CPU time of one call."""
    began = time.process_time()
    form()
    return time.process_time() - began


def compare(name: str, rounds: int) -> dict[str, float]:
    """The shortest CPU time of every form in seconds, run alternately after a warm-up: other work only adds time."""
    bench = Bench(name)
    forms: dict[str, Callable[[], None]] = {
        "ours, chain in eval mode": lambda: bench.ours("eval"),
        "bare passes, eval mode": lambda: bench.bare("eval"),
        "ours, chain in train mode": lambda: bench.ours("train"),
        "bare passes, train mode": lambda: bench.bare("train"),
        "passes shared, train mode": lambda: bench.bare("train", shared=True),
        "straightforward": bench.straightforward,
    }
    times: dict[str, list[float]] = {label: [] for label in forms}
    for turn in range(rounds + 1):
        for label, form in forms.items():
            took = seconds(form)
            if turn > 0:
                times[label].append(took)
    return {label: min(values) for label, values in times.items()}


def child(job: list[str], threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--threads", str(threads), "--child", *job]
    printed: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return printed


def run_child(job: list[str]) -> None:
    """Peak memory or seconds of one form in a fresh process, as JSON."""
    name, form, steps = job[0], job[1], int(job[2])
    best = form != "straightforward"
    if best:
        keep_freed_memory()
    bench = Bench(name, steps, channels_last=best)
    action = bench.straightforward if form == "straightforward" else lambda: bench.ours(form)
    action()
    took = seconds(action)
    print(json.dumps({"seconds": took, "peak": peak_memory()}))


def peak_memory() -> float:
    """This process' highest resident memory in MiB (Linux; getrusage would report a parent's peak, too)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def print_memory(name: str, threads: int) -> None:
    """Peak memory of a step at two lengths of the chain, each in a fresh process."""
    for form in ("eval", "train", "straightforward"):
        peaks = [child([name, form, str(steps)], threads)["peak"] for steps in (5, 40)]
        print(f"  peak memory, {form}: {peaks[0]:.0f} MiB at K = 5, {peaks[1]:.0f} MiB at K = 40")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        run_child(options.child)
        return
    keep_freed_memory()
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, {options.rounds} rounds\n")
    for name, (_, threat, steps, goal) in SETTINGS.items():
        print(f"{name}, {threat}, K = {steps}")
        found = compare(name, options.rounds)
        for label, took in found.items():
            print(f"  {label:28} {1000 * took:8.0f} ms")
        for mode in ("eval", "train"):
            ours = found[f"ours, chain in {mode} mode"]
            print(
                f"  {mode:5} mode: ours / bare passes = {ours / found[f'bare passes, {mode} mode']:.3f} (goal <= 1.05)"
            )
            print(f"  {mode:5} mode: straightforward / ours = {found['straightforward'] / ours:.2f} (goal >= {goal})")
            limit = found["straightforward"] / found[f"bare passes, {mode} mode"]
            print(f"  {mode:5} mode: straightforward / bare passes = {limit:.2f} (what this processor allows)")
        ours = found["ours, chain in train mode"]
        print(f"  train mode: ours / the passes that it runs = {ours / found['passes shared, train mode']:.3f}")
        alone = {form: child([name, form, str(steps)], options.threads) for form in ("train", "straightforward")}
        ratio = alone["straightforward"]["seconds"] / alone["train"]["seconds"]
        print(f"  default layout and allocator, straightforward / ours at our best, train mode = {ratio:.2f}")
        print(flush=True)
    print("small-cnn")
    print_memory("small-cnn", options.threads)


if __name__ == "__main__":
    main()
