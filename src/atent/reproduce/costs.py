"""What a training and a measure take: passes counted from their settings, times the rate of a pass."""

import time
from functools import cache

import torch

from atent.attacks import DeepFool, make_attack
from atent.machine import keep_freed_memory
from atent.models import Shape
from atent.models.accelerated import Precision, accelerated
from atent.models.build import build_model
from atent.planning.operations import count_operations
from atent.planning.passes import mean_cost
from atent.recipe import Recipe
from atent.reproduce.networks import size_of
from atent.reproduce.plan import Measure

GPU = 1e13  # stated, not measured: floating-point operations per second of one GPU in training
# A pass is a forward and a backward one; a forward one alone is a third of it. Of `strong`: the first phase, the images
# drawn for +- 1 point, and the passes of one (about 700 queries, 400 passes of APGD), as in results/trades-authors.
FIRST_PHASE, DRAWN_WITHIN_1, DRAWN_PASSES = 41, 550, 640
SMOOTHED_DRAWS, CERTIFIED_DRAWS = 16, 48_000
DEEPFOOL_STEPS = 5  # most images need no more


def training_passes(recipe: Recipe, epochs: int | None = None) -> float:
    """The passes of so many epochs (default: all), without the monitor."""
    images = max(size_of(recipe).trained(recipe), recipe.batch)
    passes = mean_cost(recipe, lambda passes: (passes.forward + passes.backward) / 2)
    return passes * images * (recipe.epochs if epochs is None else epochs)


def measure_passes(measure: Measure, recipe: Recipe) -> float:
    """An upper bound of the passes of a measure; `strong` and certificates as in earlier ones."""
    whole = size_of(recipe).test
    images = measure.images or whole
    if measure.kind == "certified":
        return images * int(min(measure.attack["n"], CERTIFIED_DRAWS)) / 3  # without backward passes
    if measure.kind == "strong":
        drawn = min(DRAWN_WITHIN_1 / measure.within**2, images) if measure.within < 50 else 0
        return images * FIRST_PHASE + drawn * DRAWN_PASSES
    attack = make_attack(dict(measure.attack))
    steps = getattr(attack, "steps", 1) * getattr(attack, "restarts", 1) * getattr(attack, "searches", 1)
    if isinstance(attack, DeepFool):
        steps = min(steps, DEEPFOOL_STEPS) * attack.candidates
    return float(images * steps * (SMOOTHED_DRAWS if recipe.smooth else 1))


@cache
def seconds_per_pass(model: str, shape: Shape, precision: Precision = "off") -> float:
    """The time that one core needs for a forward and backward pass of an image as in a training, measured now."""
    images = max(2, min(64, round(2e10 / flops_per_pass(model, shape))))
    network = build_model(model, shape).train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.zeros(images, *shape.image).to(memory_format=torch.channels_last)
    threads = torch.get_num_threads()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        return min(_timed(accelerated(network, precision), x) for _ in range(4)) / images
    finally:
        torch.set_num_threads(threads)


def _timed(network: torch.nn.Module, x: torch.Tensor) -> float:
    began = time.process_time()  # other work on the machine does not count
    network(x).logsumexp(1).sum().backward()
    return time.process_time() - began


@cache
def flops_per_pass(model: str, shape: Shape) -> float:
    """Floating-point operations of a forward and backward pass of an image: three times those of a forward one."""
    return 3.0 * count_operations(build_model(model, shape), shape).forward


def seconds(passes: float, recipe: Recipe, on_gpu: bool, precision: Precision = "off") -> float:
    """The time of so many passes of the recipe's network: on a GPU of the stated rate, or measured on one core."""
    shape = size_of(recipe).shape
    if on_gpu:
        return passes * flops_per_pass(recipe.model, shape) / GPU
    return passes * seconds_per_pass(recipe.model, shape, precision)


def words(total: float) -> str:
    """A time as text: 45 s, 12 min, 3.4 h, 2.1 days."""
    for size, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if total >= (2 * size if name == "days" else size):
            return f"{total / size:.1f} {name}" if name != "min" else f"{total / size:.0f} min"
    return f"{total:.0f} s"
