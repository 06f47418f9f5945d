"""The plan of a training: what it needs in passes and operations, and what these take here and on accelerators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atent.attacks import make_attack
from atent.attacks.cost import passes_per_image
from atent.errors import UserError
from atent.evaluation.certify import plan_certificates
from atent.evaluation.estimate import DRAWN
from atent.evaluation.sampling import Goal, Law
from atent.evaluation.suites import FIRST, suite_attacks
from atent.models.build import build_model
from atent.network import Passes, Shape
from atent.planning.accelerators import Accelerator
from atent.planning.operations import Operations, count_operations
from atent.planning.passes import mean_cost
from atent.planning.probe import Probe, request
from atent.planning.sizes import Sizes
from atent.recipe import Recipe
from atent.smoothing.stopping import Smoothing
from atent.threat import Threat
from atent.training.budget import monitor_passes

AFFORDABLE = 6e11  # operations of a batch that a probe runs as it is; of more, it runs plain batches of a few images
FEW = 2  # images of such a batch; BatchNorm needs two
SURVIVORS, BROKEN_LATER = 0.5, 0.05  # assumed: shares that withstand the first phase, and that the second breaks
PASSES = ("forward", "backward", "to_weights")
EVENLY = 50  # probabilities of the class, spread over (1/2, 1)


@dataclass(frozen=True)
class Job:
    """A training, an evaluation or a certification: passes of one image, images, operations, and how it was counted."""

    name: str
    passes: Passes
    images: int
    operations: float
    note: str = ""

    @property
    def work(self) -> float:
        """In forward passes."""
        return float(self.passes.work) * self.images


@dataclass(frozen=True)
class Needs:
    """What a training needs on any machine."""

    parameters: int
    sizes: Sizes
    batches: int  # in an epoch
    epochs: int
    step: Passes  # of an image in a batch
    operations: Operations  # of an image
    epoch: float  # operations of an epoch's batches
    evaluation: Job  # after each epoch
    fixed: int  # bytes of weights, gradients and the optimizer's state
    each: int  # bytes of activations of an image

    @property
    def total(self) -> float:
        """Operations of the whole training, with the evaluation after each epoch."""
        return self.epochs * (self.epoch + self.evaluation.operations)

    def memory(self, batch: float) -> float:
        """Bytes of the network in training, with a batch of so many images."""
        return self.fixed + self.each * max(batch, 1.0)


def needs_of(recipe: Recipe, sizes: Sizes) -> Needs:
    """Count everything that needs no measurement."""
    network = build_model(recipe.model, sizes.shape)
    parameters = sum(one.numel() for one in network.parameters())
    each = activation_bytes(network, sizes.shape)
    states = {"sgd": 1, "adam": 2, "adamw": 2}.get(str(recipe.optimizer["name"]), 2)
    copies = 2 + states + (recipe.averaging > 0)
    operations = count_operations(network, sizes.shape)
    images = sizes.trained(recipe)
    step = Passes(*(round(mean_cost(recipe, attrgetter(key))) for key in PASSES))
    monitor, held = monitor_passes(recipe), sizes.evaluated(recipe)
    return Needs(
        parameters=parameters,
        sizes=sizes,
        batches=sizes.batches(recipe),
        epochs=recipe.epochs,
        step=step,
        operations=operations,
        epoch=images * mean_cost(recipe, operations.of),
        evaluation=Job("monitor", monitor, held, held * operations.of(monitor)),
        fixed=4 * parameters * copies,
        each=each,
    )


def activation_bytes(network: nn.Module, shape: Shape) -> int:
    """The bytes that the backward pass of an image needs: what autograd keeps, without the weights themselves."""
    kept: dict[int, int] = {}
    own = {one.untyped_storage().data_ptr() for one in (*network.parameters(), *network.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    network.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network(torch.zeros(FEW, *shape.image).requires_grad_())
    del logits  # until here, so that no memory is used twice
    return sum(kept.values()) // FEW


@dataclass(frozen=True)
class Place:
    """What the training takes at one place, with so many devices: seconds, bytes on each, watt-hours, price."""

    name: str
    epoch: float
    total: float
    memory: float
    fits: bool = True
    watt_hours: float | None = None
    price: float | None = None
    jobs: tuple[float, ...] = ()  # seconds of each further job

    @property
    def epochs(self) -> float:
        """Those of the recipe; with a budget, those that fit into it."""
        return self.total / self.epoch

    def priced(self, price: float | None, devices: int) -> "Place":
        """With the price of the training and the further jobs, given that of a device per hour."""
        hours = (self.total + sum(self.jobs)) / 3600
        return self if price is None else replace(self, price=price * devices * hours)


def here(needs: Needs, recipe: Recipe, probe: Probe, jobs: Sequence[Job]) -> Place:
    """On this machine, by the probe, which ran on one device."""
    forward = probe.pass_seconds
    batch, memory = probe.seconds, float(probe.peak)
    if probe.plain:  # one forward pass, one backward pass to the weights
        forward = probe.seconds / (3 * probe.batch)
        batch = forward * needs.step.work * recipe.batch
        memory = probe.peak + needs.each * (recipe.batch - probe.batch)
    epoch = needs.batches * batch + needs.evaluation.work * forward
    seconds = tuple(job.work * forward for job in jobs)
    return Place("this machine", epoch, _training_seconds(recipe, epoch), memory, jobs=seconds)


def _training_seconds(recipe: Recipe, epoch: float) -> float:
    return 60 * recipe.minutes if recipe.minutes else recipe.epochs * epoch


def on(
    needs: Needs, recipe: Recipe, device: Accelerator, devices: int, efficiency: float, jobs: Sequence[Job]
) -> Iterator[Place]:
    """On an accelerator at a share of its published peak: in float32, and in mixed precision."""
    memory = needs.memory(recipe.batch / devices)
    for words, peak in (("float32", device.single), ("half", device.half)):
        rate = peak * efficiency * devices
        epoch = (needs.epoch + needs.evaluation.operations) / rate
        total = _training_seconds(recipe, epoch)
        yield Place(
            name=f"{device.title}, {words}",
            epoch=epoch,
            total=total,
            memory=memory,
            fits=memory < device.gigabytes * 1e9,
            watt_hours=total / 3600 * device.watts * devices,
            jobs=tuple(job.operations / rate for job in jobs),
        )


def probe_request(
    needs: Needs, recipe: Recipe, data_dir: Path | None, device: str, threads: int | None
) -> dict[str, Any]:
    """A probe of the training as it is, or, where a batch would take too long, of plain batches of a few images."""
    affordable = recipe.batch * mean_cost(recipe, needs.operations.of) <= AFFORDABLE or device != "cpu"
    batch = recipe.batch if affordable else FEW
    return request(recipe, needs.sizes, data_dir, device, threads, batch=batch, plain=not affordable)


def evaluation_jobs(needs: Needs, recipe: Recipe, suite: str, within: float | None) -> list[Job]:
    """The attacks of a suite on the test images, at most: every image withstands all of them."""
    threat, images, classes = recipe.make_threat(), needs.sizes.test, needs.sizes.shape.classes
    found = suite_attacks(suite, threat, classes)
    if within is None:
        return [_attack_job(needs, suite, found, threat, images, "at most: every image withstands")]
    survivors = round(SURVIVORS * images)
    drawn = Law(images, survivors, DRAWN).expected_draws(Goal(within), BROKEN_LATER)
    second = [one for one in found if one != FIRST]
    note = f"if half of the images withstand the first phase and 1 in {round(1 / BROKEN_LATER)} of them breaks later"
    return [
        _attack_job(needs, f"{suite}, first phase", [FIRST], threat, images, "at most"),
        _attack_job(needs, f"{suite}, sample for +- {within:g}", second, threat, drawn, note),
    ]


def _attack_job(
    needs: Needs, name: str, attacks: Sequence[dict[str, object]], threat: Threat, images: int, note: str
) -> Job:
    classes = needs.sizes.shape.classes
    passes = [passes_per_image(make_attack(one), threat, classes) for one in attacks]
    whole = Passes(*(sum(getattr(one, key) for one in passes) for key in PASSES))
    return Job(name, whole, images, images * needs.operations.of(whole), note)


def certification_job(needs: Needs, sigma: float, n: int) -> Job:
    """The draws of the stopping rule, if the class's probability is spread evenly over the images between 1/2 and 1."""
    how, _ = plan_certificates(Smoothing(sigma, n=n), [], [], needs.sizes.shape.image, exact=False)
    drawn = [draws_of(how, 0.5 + (k + 0.5) / (2 * EVENLY)) for k in range(EVENLY)]
    each = Passes(forward=round(sum(drawn) / EVENLY) + how.n0)
    images = needs.sizes.test
    note = f"if the class's probability is spread evenly between 1/2 and 1; at most {n + how.n0:,} draws per image"
    return Job(f"certify, sigma {sigma:g}", each, images, images * needs.operations.of(each), note)


def draws_of(how: Smoothing, probability: float) -> int:
    """The draws after which an image is settled whose draws agree exactly this often."""
    test = how.test()
    while not test.settled:
        drawn = test.next
        test.look(round(probability * drawn))
    return drawn


def check_asked(devices: int, price: float | None, n: int) -> None:
    """Refuse numbers that no machine has."""
    if devices < 1:
        raise UserError(f"--devices {devices}; allowed: 1 or more")
    if price is not None and not 0 <= price < float("inf"):
        raise UserError(f"--price {price:g}; allowed: 0 or more, per device and hour")
    if n < 1:
        raise UserError(f"--n {n}; allowed: 1 or more draws")
