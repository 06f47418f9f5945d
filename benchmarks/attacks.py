"""The speed of PGD here and in Foolbox, ART and torchattacks: same steps, step size, start and threat.

    python benchmarks/attacks.py --robust WEIGHTS --plain WEIGHTS [--data-dir DIR] [--examples N] [--rounds N]

All attacks run alternately in one process on copies of one network, each in the memory layout (default or channels
last) in which it is faster, and otherwise as its documentation shows. Figures are ratios of the best rounds. The
accuracies must agree, since an attack may be fast because it is weak; with --from-x all start at x itself, so that
random starts cause no differences. A library that is not installed is skipped.
"""

import argparse
import copy
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from atent.attacks import Pgd
from atent.data.images import Images, evaluation_batches
from atent.evaluation.target import open_target
from atent.machine import prepare
from atent.threat import Threat

Contender = Callable[[Tensor, Tensor], Tensor]
LAYOUTS = {"default layout": torch.contiguous_format, "channels last": torch.channels_last}
AGREE = 0.003


class Bench:
    """One network, its images, and the attacks of all libraries on it."""

    def __init__(
        self, model: nn.Module, images: Images, threat: Threat, steps: int, batch: int, random_start: bool
    ) -> None:
        self.images, self.threat, self.steps, self.batch = images, threat, steps, batch
        self.random_start = random_start
        self.step = 2.5 * threat.eps / steps
        self.models = {
            name: copy.deepcopy(model).eval().to(memory_format=layout)  # type: ignore[call-overload]
            for name, layout in LAYOUTS.items()
        }

    def ours(self, model: nn.Module) -> Contender:
        attack = Pgd(steps=self.steps, start="uniform" if self.random_start else "center")
        generator = torch.Generator().manual_seed(0)
        return lambda x, y: attack(model, x, y, self.threat, generator)

    def foolbox(self, library: ModuleType, model: nn.Module) -> Contender:
        kind = library.attacks.LinfPGD if self.threat.norm == "linf" else library.attacks.L2PGD
        attack = kind(abs_stepsize=self.step, steps=self.steps, random_start=self.random_start)
        wrapped = library.PyTorchModel(model, bounds=(0, 1), device="cpu")
        return lambda x, y: attack(wrapped, x, y, epsilons=self.threat.eps)[1]

    def art(self, library: ModuleType, model: nn.Module) -> Contender:
        shape = self.images.shape
        classifier = importlib.import_module("art.estimators.classification").PyTorchClassifier(
            model, nn.CrossEntropyLoss(), shape.image, shape.classes, clip_values=(0.0, 1.0), device_type="cpu"
        )
        attack = library.ProjectedGradientDescentPyTorch(
            classifier,
            norm="inf" if self.threat.norm == "linf" else 2,
            eps=self.threat.eps,
            eps_step=self.step,
            max_iter=self.steps,
            num_random_init=int(self.random_start),
            batch_size=self.batch,
            verbose=False,
        )
        return lambda x, y: torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    def torchattacks(self, library: ModuleType, model: nn.Module) -> Contender:
        kind = library.PGD if self.threat.norm == "linf" else library.PGDL2
        attack: Contender = kind(
            model, eps=self.threat.eps, alpha=self.step, steps=self.steps, random_start=self.random_start
        )
        return attack

    def contenders(self) -> dict[str, Callable[[nn.Module], Contender]]:
        """For each installed library, how to build its attack on a network."""
        found: dict[str, Callable[[nn.Module], Contender]] = {"ours": self.ours}
        peers = (
            ("Foolbox", "foolbox", self.foolbox),
            ("ART", "art.attacks.evasion", self.art),
            ("torchattacks", "torchattacks", self.torchattacks),
        )
        for name, module, build in peers:
            try:
                library = importlib.import_module(module)
            except ImportError as error:
                print(f"  {name} is skipped: {error}")
                continue
            found[name] = lambda model, build=build, library=library: build(library, model)  # type: ignore[misc]
        return found

    def run(self, attack: Contender, model: nn.Module, layout: str, examples: int) -> tuple[float, float]:
        """The seconds that the attack takes on the first examples, and the accuracy of the network under it."""
        seconds, robust = 0.0, 0
        for part in evaluation_batches(examples, self.batch):
            x, y = self.images.batch(part)
            x = x.to(memory_format=LAYOUTS[layout])
            began = time.perf_counter()
            x_adv = attack(x, y)
            seconds += time.perf_counter() - began
            with torch.no_grad():
                robust += int(((model(x).argmax(1) == y) & (model(x_adv).argmax(1) == y)).sum())
        return seconds, robust / examples

    def compare(self, rounds: int) -> None:
        """Print accuracy and time of each attack, the time also relative to ours."""
        chosen: dict[str, tuple[str, Contender]] = {}
        for name, build in self.contenders().items():
            trials = {layout: build(model) for layout, model in self.models.items()}
            warm_up = min(self.batch, len(self.images))
            times = {
                layout: min(self.run(trial, self.models[layout], layout, warm_up)[0] for _ in range(2))
                for layout, trial in trials.items()
            }
            faster = min(times, key=times.__getitem__)
            chosen[name] = faster, trials[faster]
        times_of: dict[str, list[float]] = {name: [] for name in chosen}
        accuracies: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(rounds):
            for name, (layout, attack) in chosen.items():
                seconds, accuracy = self.run(attack, self.models[layout], layout, len(self.images))
                times_of[name].append(seconds)
                accuracies[name].append(accuracy)
        ours = min(times_of["ours"])
        mean = {name: sum(values) / len(values) for name, values in accuracies.items()}
        for name, (layout, _) in chosen.items():
            seconds = min(times_of[name])
            print(
                f"  {name:13} {100 * mean[name]:6.2f} % robust {seconds:8.2f} s   {seconds / ours:5.2f} x ours"
                f"   ({layout}; rounds {min(times_of[name]):.2f} to {max(times_of[name]):.2f} s)"
            )
        apart = max(mean.values()) - min(mean.values())
        verdict = "agree" if apart <= AGREE else f"DIFFER by more than {100 * AGREE:g} points"
        print(f"  accuracies {verdict}: {100 * apart:.2f} points apart\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robust", type=Path, metavar="WEIGHTS", help="run folder or weights of a robust network")
    parser.add_argument(
        "--plain", type=Path, metavar="WEIGHTS", help="run folder or weights of a network without defense"
    )
    parser.add_argument("--model", default="small-cnn", help="both networks' architecture (default: small-cnn)")
    parser.add_argument("--data", default="mnist", help="data set with the test images (default: mnist)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--threat", type=Threat.parse, default=Threat("linf", 0.3))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--from-x", action="store_true", help="start at x instead of a random point")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if options.robust is None and options.plain is None:
        parser.error("nothing to attack: give --robust WEIGHTS, --plain WEIGHTS or both (atent train makes them)")
    prepare(options.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {options.threads} threads, PGD-{options.steps} {options.threat}, "
        f"{options.examples} images in batches of {options.batch}, {options.rounds} rounds\n"
    )
    for kind in ("robust", "plain"):
        weights = getattr(options, kind)
        if weights is None:
            continue
        target = open_target(
            weights, model=options.model, data=options.data, data_dir=options.data_dir, examples=options.examples
        )
        print(f"{kind}: {weights}")
        bench = Bench(target.network, target.images, options.threat, options.steps, options.batch, not options.from_x)
        bench.compare(options.rounds)


if __name__ == "__main__":
    main()
