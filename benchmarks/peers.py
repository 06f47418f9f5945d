"""A training step here and with other libraries: PGD training with ART and torchattacks, TRADES in its public form.

    python benchmarks/peers.py [--threads N] [--rounds N] [--networks small-cnn resnet-20]

Same network, batch of 128, K = 10, step 2.5 eps / 10, uniform start (TRADES: its own), SGD with momentum. ART: PGD on
the batch, then `fit` with it for one epoch. torchattacks: its PGD, then a plain step of the optimizer. TRADES: the
form in which its authors describe it, in which each step of the search passes x, too. All forms run alternately in one
process with our allocator, each on its own copy of the network; others in torch's default memory layout, as their
documentation shows them, and in ours. Figures are CPU time of the best rounds. A library that is not installed is
skipped.
"""

import argparse
import copy
import importlib
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from atent.defenses import Defense, PgdAt, Trades
from atent.machine import prepare
from atent.models import MODELS, Shape
from atent.threat import Threat
from atent.training.step import train_step

BATCH, STEPS, REACH, BETA = 128, 10, 2.5, 6.0
SETTINGS = {
    "small-cnn": (Shape((1, 28, 28), 10), Threat("linf", 0.3)),
    "resnet-20": (Shape((3, 32, 32), 10), Threat("linf", 8 / 255)),
}
GOALS = {"ART": 1.3, "torchattacks": 1.05, "TRADES, public form": 1.4}
Form = Callable[[], object]


class Bench:
    """A network, a batch, and training steps with copies of the network."""

    def __init__(self, name: str) -> None:
        self.shape, self.threat = SETTINGS[name]
        torch.manual_seed(0)
        self.network = MODELS[name](self.shape)
        self.x, self.y = torch.rand(BATCH, *self.shape.image), torch.randint(self.shape.classes, (BATCH,))
        self.step = REACH * self.threat.eps / STEPS

    def copied(self, last: bool) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
        """A copy of the network, its optimizer and the images, in one of two memory layouts."""
        layout = torch.channels_last if last else torch.contiguous_format
        network = copy.deepcopy(self.network).to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        return network, optimizer, self.x.to(memory_format=layout)

    def ours(self, defense: Defense) -> Form:
        network, optimizer, x = self.copied(last=True)
        generator = torch.Generator().manual_seed(0)
        return lambda: train_step(network, optimizer, defense, x, self.y, self.threat, generator)

    def art(self, last: bool) -> Form:
        network, optimizer, x = self.copied(last)
        classification = importlib.import_module("art.estimators.classification")
        classifier = classification.PyTorchClassifier(
            network,
            nn.CrossEntropyLoss(),
            self.shape.image,
            self.shape.classes,
            optimizer=optimizer,
            clip_values=(0.0, 1.0),
            device_type="cpu",
        )
        attack = importlib.import_module("art.attacks.evasion").ProjectedGradientDescentPyTorch(
            classifier,
            norm="inf",
            eps=self.threat.eps,
            eps_step=self.step,
            max_iter=STEPS,
            num_random_init=1,
            batch_size=BATCH,
            verbose=False,
        )
        images, labels = x.numpy(), functional.one_hot(self.y, self.shape.classes).numpy()

        def step() -> None:
            found = attack.generate(images, labels)
            classifier.fit(found, labels, batch_size=BATCH, nb_epochs=1)

        return step

    def torchattacks(self, last: bool) -> Form:
        network, optimizer, x = self.copied(last)
        attack = importlib.import_module("torchattacks").PGD(
            network, eps=self.threat.eps, alpha=self.step, steps=STEPS, random_start=True
        )

        def step() -> None:
            found = attack(x, self.y)
            network.train()
            optimizer.zero_grad()
            functional.cross_entropy(network(found), self.y).backward()
            optimizer.step()

        return step

    def public_trades(self, last: bool) -> Form:
        network, optimizer, x = self.copied(last)
        eps = self.threat.eps

        def spread(at: Tensor) -> Tensor:
            """The divergence of the predictions at this point from those at x, summed."""
            return functional.kl_div(network(at).log_softmax(1), network(x).softmax(1), reduction="sum")

        def step() -> None:
            network.eval()
            found = x + 1e-3 * torch.randn_like(x)
            for _ in range(STEPS):
                found = found.detach().requires_grad_()
                (slope,) = torch.autograd.grad(spread(found), found)
                found = found.detach() + self.step * slope.sign()
                found = torch.clamp(torch.min(torch.max(found, x - eps), x + eps), 0, 1)
            network.train()
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(x), self.y) + BETA / len(x) * spread(found.detach())
            loss.backward()
            optimizer.step()

        return step


def cpu_seconds(form: Form) -> float:
    began = time.process_time()
    form()
    return time.process_time() - began


def installed(build: Callable[[bool], Form], last: bool, name: str) -> Form | None:
    """The form; None if its library is not installed."""
    try:
        return build(last)
    except ImportError as error:
        print(f"  {name} is skipped: {error}")
        return None


def compare(network: str, rounds: int) -> None:
    """Print the CPU time of each form, and that of the others relative to ours."""
    bench = Bench(network)
    mine = {"PGD training": PgdAt(steps=STEPS, reach=REACH), "TRADES": Trades(BETA, steps=STEPS)}
    rivals = {"ART": bench.art, "torchattacks": bench.torchattacks, "TRADES, public form": bench.public_trades}
    found = {
        (name, last): form
        for name, build in rivals.items()
        for last in (False, True)
        if (form := installed(build, last, name)) is not None
    }
    forms = {(name, True): bench.ours(defense) for name, defense in mine.items()} | found
    times: dict[tuple[str, bool], list[float]] = {key: [] for key in forms}
    for turn in range(rounds + 1):
        for key, form in forms.items():
            took = cpu_seconds(form)
            if turn > 0:
                times[key].append(took)
    for name in mine:
        print(f"  {f'ours, {name}':36} {1000 * min(times[name, True]):6.0f} ms")
    for name, last in found:
        ours, theirs = times["TRADES" if name.startswith("TRADES") else "PGD training", True], times[name, last]
        ratios = [other / one for other, one in zip(theirs, ours, strict=True)]
        what = f"{name}, {'channels last' if last else 'default layout'}"
        goal = "" if last else f", goal >= {GOALS[name]}"
        ratio = f"{min(theirs) / min(ours):.2f} times ours (rounds {min(ratios):.2f} to {max(ratios):.2f}{goal})"
        print(f"  {what:36} {1000 * min(theirs):6.0f} ms, {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    options = parser.parse_args()
    prepare(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, K = {STEPS}, {options.rounds} rounds")
    for network in options.networks:
        print(network)
        compare(network, options.rounds)


if __name__ == "__main__":
    main()
