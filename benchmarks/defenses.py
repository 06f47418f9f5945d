"""The cost of a training step of every defense, relative to the bare passes that it runs.

    python benchmarks/defenses.py [--threads N] [--rounds N] [--only trades atent]

The passes of one step are recorded (forward only, gradient of the input, gradient of the weights, both) and then run
again with nothing in between: no search, no loss except cross-entropy, no bookkeeping. Both forms run alternately in
one process; figures are ratios of the best rounds.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from atent.defenses import DEFENSES, Defense
from atent.machine import prepare
from atent.models import MODELS, Shape
from atent.optim.entropy_sgd import EntropySGD
from atent.threat import Threat
from atent.training.step import train_step

BATCH = 128
METHODS = [*DEFENSES, "entropy-sgd"]
SETTINGS = {
    "small-cnn": (Shape((1, 28, 28), 10), Threat("linf", 0.3)),
    "resnet-20": (Shape((3, 32, 32), 10), Threat("l2", 0.5)),
}


class Bench:
    """A network, a batch, a defense and an optimizer; the training step, and its recorded passes."""

    def __init__(self, name: str, defense: Defense, build: Callable[..., torch.optim.Optimizer]) -> None:
        shape, self.threat = SETTINGS[name]
        torch.manual_seed(0)
        self.model: nn.Module = MODELS[name](shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.x = torch.rand(BATCH, *shape.image).to(memory_format=torch.channels_last)
        self.y = torch.randint(shape.classes, (BATCH,))
        self.defense, self.optimizer = defense, build(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(0)
        # Train mode, gradient of the input, of the weights, and the size in batches (noisy copies).
        self.passes: list[tuple[bool, bool, bool, int]] = []
        hook = self.model.register_forward_pre_hook(self._record)
        self.step()
        hook.remove()

    def _record(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        graph = torch.is_grad_enabled()
        weights = graph and any(parameter.requires_grad for parameter in model.parameters())
        to_input = graph and bool(arguments[0].requires_grad)
        self.passes.append((model.training, to_input, weights, len(arguments[0]) // BATCH))

    def step(self) -> None:
        train_step(self.model, self.optimizer, self.defense, self.x, self.y, self.threat, self.generator)

    def bare(self) -> None:
        parameters = list(self.model.parameters())
        self.optimizer.zero_grad()
        for training, to_input, to_weights, copies in self.passes:
            if self.model.training != training:
                self.model.train(training)
            if parameters[0].requires_grad != to_weights:
                for parameter in parameters:
                    parameter.requires_grad_(to_weights)
            point: Tensor = torch.cat([self.x] * copies).requires_grad_(to_input)
            with torch.set_grad_enabled(to_input or to_weights):
                loss = functional.cross_entropy(self.model(point), self.y.repeat(copies))
            if to_weights:
                loss.backward()
            elif to_input:
                torch.autograd.grad(loss, point)
        for parameter in parameters:
            parameter.requires_grad_(True)
        if isinstance(self.optimizer, torch.optim.SGD):
            self.optimizer.step()


def seconds(form: Callable[[], None]) -> float:
    began = time.perf_counter()
    form()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    prepare(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, best of {options.rounds} rounds")
    for network in options.networks:
        print(f"\n{network}: step, bare passes, ratio (goal <= 1.10)")
        for name in options.only:
            build = EntropySGD if name == "entropy-sgd" else torch.optim.SGD
            bench = Bench(network, DEFENSES.get(name, DEFENSES["standard"])(), build)
            pairs = [(seconds(bench.step), seconds(bench.bare)) for _ in range(options.rounds + 1)][1:]
            ours, bare = (1000 * min(times) for times in zip(*pairs, strict=True))
            kinds = f"{len(bench.passes)} passes, {sum(full for _, _, full, _ in bench.passes)} of them to the weights"
            print(f"  {name:12} {ours:7.0f} ms {bare:7.0f} ms  {ours / bare:.3f}  ({kinds})", flush=True)


if __name__ == "__main__":
    main()
