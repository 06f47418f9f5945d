"""The trainings behind the tables: the paper's recipes, and what is changed in them for two cores.

A change for `cpu` is a line in one of these dictionaries. Rates on one core are about 1 ms per forward and backward
pass of an image for `small-cnn` and `lenet5`, 3.9 ms for `resnet-20`; bfloat16 halves them on a processor that has it.
"""

from pathlib import Path
from typing import Any

from atent.data.published import SOURCES
from atent.defenses import DEFENSES
from atent.machine import emulates_bf16, pick_device
from atent.methods import field_names
from atent.models import Shape
from atent.planning.sizes import Sizes
from atent.recipe import Recipe, load_recipe, recipe_of
from atent.reproduce.plan import BudgetName, Changes, Network
from atent.storage.run import Run

ONE_CYCLE: Changes = {"schedule.name": "one-cycle", "schedule.warmup": 0.2, "schedule.milestones": []}
SGD: Changes = {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9}
TEN_STEPS: Changes = {"defense.steps": 10, "defense.step": None, "defense.reach": 2.0}
HALF: Changes = {"amp": "bf16"}
# ATENT with noise of half a step, projected at every step; the loss is at the last sample.
NOISY: Changes = {
    "defense.temperature": 0.5,
    "defense.share": 1.0,
    "defense.start": "uniform",
    "defense.project": "every",
    "defense.mode": "eval",
}
# Five steps of 2, 1.2, .7, .4 and .25 radii climb higher than ten equal ones (docs/search.md).
SHRINKING: Changes = {"defense.steps": 5, "defense.step": None, "defense.reach": 4.6, "defense.decay": 0.125}
# MNIST, linf .3: the settings of mnist-linf-pgd-quick for all rows with a search but ATENT.
MNIST_LINF: Changes = {
    **ONE_CYCLE,
    **SGD,
    **TEN_STEPS,
    "schedule.eps_warmup": 1.6,
    "optimizer.lr": 0.1,
    "batch": 128,
    "averaging": 0.997,
    "recoveries": 2,
    "epochs": 6,
}
MNIST_LINF_ATENT: Changes = {**MNIST_LINF, **HALF, **NOISY, **SHRINKING, "optimizer.lr": 0.05, "epochs": 24}
# MNIST, l2 2: five steps of 1.2 radii, which climb higher than shorter ones; ATENT with noise of a quarter of a step.
FIVE_STEPS: Changes = {"defense.steps": 5, "defense.step": None, "defense.reach": 6.0}
MNIST_L2: Changes = {**ONE_CYCLE, **SGD, **HALF, **FIVE_STEPS, "batch": 128, "averaging": 0.997, "epochs": 6}
MNIST_L2_ATENT: Changes = {
    **MNIST_L2,
    **NOISY,
    "defense.temperature": 0.25,
    "defense.pull": 0.0,
    "schedule.eps_peak": 1.25,
    "epochs": 20,
}
# CIFAR-10: the settings of cifar10-linf-zoo, with two steps where that has a single noisy one.
CIFAR10: Changes = {
    **ONE_CYCLE,
    **HALF,
    "schedule.eps_warmup": 0.0,
    "model": "resnet-20",
    "standardize": True,
    "batch": 128,
    "averaging": 0.999,
    "epochs": 12,
    "monitor_examples": 500,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.2,
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 2e-4,
    "defense.steps": 2,
    "defense.step": None,
    "defense.reach": 1.25,
}
CIFAR10_ATENT: Changes = {**CIFAR10, **NOISY, "epochs": 24}
CIFAR10_L2: Changes = {**CIFAR10, "epochs": 10}
CIFAR10_L2_ATENT: Changes = {**CIFAR10_L2, **NOISY, "defense.pull": 0.0}
# One step and the noise of sigma, at 1.25 times the radius as in Table 1; in eval mode, so that BatchNorm's statistics
# are those of noisy images alone.
CIFAR10_SMOOTH_ATENT: Changes = {
    **CIFAR10,
    "defense.steps": 1,
    "defense.reach": 1.0,
    "defense.share": 1.0,
    "defense.mode": "eval",
    "schedule.eps_peak": 1.25,
    "epochs": 24,
}
PLAIN: Changes = {key: value for key, value in CIFAR10.items() if not key.startswith("defense.")}
TWENTY_BATCHES: Changes = {
    "epochs": 1,
    "batch": 4,
    "validation": 49_920,
    "monitor_examples": 4,
    "monitor.steps": 2,
}
# The run behind the paper's Table 2, for two epochs.
FAITHFUL: Changes = {
    "epochs": 2,
    "validation": 1000,
    "defense.step": 0.02,
    "defense.noise": 1e-4,
    "defense.start": "corner",
    "optimizer.lr": 0.03,
}
# Figure 1: a three-layer network for two digits. The paper does not give its radius; .1 is ours.
THREE_LAYERS: Changes = {
    **ONE_CYCLE,
    **SGD,
    "model": "atent.reproduce.regions:ThreeLayers",
    "data": "pair",
    "threat": "linf:0.1",
    "validation": 1000,
    "batch": 128,
    "epochs": 20,
}
THREE_LAYERS_SEARCH: Changes = {**THREE_LAYERS, **TEN_STEPS}

NETWORKS: dict[str, Network] = {
    "mnist-l2-standard": Network("mnist-l2-standard", {"epochs": 15}),
    "mnist-l2-entropy-sgd": Network("mnist-l2-entropy-sgd", {"epochs": 3}),
    "mnist-l2-pgd-at": Network("mnist-l2-pgd-at", MNIST_L2),
    "mnist-l2-trades": Network("mnist-l2-trades", MNIST_L2),
    "mnist-l2-mma": Network("mnist-l2-mma", {**MNIST_L2, "epochs": 2}),
    "mnist-l2-atent": Network("mnist-l2-atent-paper", MNIST_L2_ATENT),
    "mnist-linf-standard": Network("mnist-linf-standard", {"epochs": 20}),
    "mnist-linf-entropy-sgd": Network("mnist-linf-entropy-sgd", {"epochs": 4}),
    "mnist-linf-pgd-at": Network("mnist-linf-pgd-at", MNIST_LINF),
    "mnist-linf-trades": Network("mnist-linf-trades", MNIST_LINF),
    "mnist-linf-mma": Network("mnist-linf-mma", {**MNIST_LINF, "optimizer.lr": 0.05, "epochs": 2}),
    "mnist-linf-mart": Network("mnist-linf-mart", MNIST_LINF),
    "mnist-linf-atent": Network("mnist-linf-atent-paper", MNIST_LINF_ATENT),
    "mnist-linf-atent-faithful": Network("mnist-linf-atent-paper", FAITHFUL, FAITHFUL),
    "mnist-linf-pretrained": Network("mnist-linf-zoo", {}, zoo="mnist-linf"),
    "cifar10-linf-pgd-at": Network("cifar10-linf-pgd-at", {**CIFAR10, "defense.mode": "eval"}),
    "cifar10-linf-trades": Network("cifar10-linf-trades", CIFAR10),
    "cifar10-linf-mart": Network("cifar10-linf-mart", {**CIFAR10, "epochs": 9}),  # as many passes as 12 of PGD-AT
    "cifar10-linf-atent": Network("cifar10-linf-atent-paper", CIFAR10_ATENT),
    "cifar10-linf-one-step": Network("cifar10-linf-zoo", {}, zoo="cifar10-linf"),
    "cifar10-linf-atent-wide": Network("cifar10-linf-atent-paper", TWENTY_BATCHES),
    "cifar10-l2-pgd-at": Network("cifar10-l2-pgd-at", CIFAR10_L2),
    "cifar10-l2-mma": Network("cifar10-l2-mma", CIFAR10),
    "cifar10-l2-atent": Network("cifar10-l2-atent-paper", CIFAR10_L2_ATENT),
    "cifar10-smooth-trades": Network("cifar10-smooth-trades", CIFAR10),
    "cifar10-smooth-atent": Network("cifar10-smooth-atent-paper", CIFAR10_SMOOTH_ATENT),
    "cifar10-standard": Network("cifar10-standard", {**PLAIN, "epochs": 6}),
    # 6 epochs of one pass and 10 of three; from scratch, 12 of three: `cifar10-linf-pgd-at` with noise.
    "cifar10-linf-finetune": Network(
        "cifar10-linf-finetune-paper",
        {**CIFAR10, **NOISY, "optimizer.lr": 1e-4, "averaging": 0.0, "epochs": 10},
        start="cifar10-standard",
    ),
    "cifar10-linf-scratch": Network("cifar10-linf-atent-paper", {**CIFAR10, **NOISY}, {"epochs": 20}),
    "pair-standard": Network("mnist-linf-standard", THREE_LAYERS, THREE_LAYERS),
    "pair-pgd-at": Network("mnist-linf-pgd-at", THREE_LAYERS_SEARCH, THREE_LAYERS_SEARCH),
    "pair-trades": Network("mnist-linf-trades", THREE_LAYERS_SEARCH, THREE_LAYERS_SEARCH),
    "pair-atent": Network("mnist-linf-atent-paper", THREE_LAYERS_SEARCH, THREE_LAYERS_SEARCH),
}

# Data that a recipe names, and what takes their place at `smoke`; `pair` is two digits of the other.
STAND_INS = {"mnist": "mnist-small", "cifar10": "patches", "pair": "pair-small"}
MADE = ("patches", "pair", "pair-small")  # by `images`, as DATA/NAME.npz
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


SIZES = {
    **{name: Sizes(*source.counts, Shape(source.image, len(source.classes))) for name, source in SOURCES.items()},
    "patches": Sizes(120, 30, Shape(COLOUR, 10)),
    "pair": Sizes(11_272, 1866, Shape(GREY, 2)),
    "pair-small": Sizes(1200, 400, Shape(GREY, 2)),
}
_SMOKE: Changes = {"epochs": 2, "batch": 25, "monitor_examples": 10, "monitor.steps": 2, "schedule.milestones": []}
_SMOKE_HELD_OUT = {"mnist-small": 5600, "patches": 20, "pair-small": 0.8}
_SMOKE_SEARCH: Changes = {"defense.steps": 2, "defense.step": None, "defense.reach": 1.5}


def size_of(recipe: Recipe) -> Sizes:
    """The size of the data of one of our recipes."""
    return SIZES[Path(recipe.data).stem]


def recipe_at(name: str, budget: BudgetName, home: Path, start: Path | None = None, device: str = "cpu") -> Recipe:
    """The recipe of a network at a budget; `home` is the folder with data made here and the other networks.

    `start` is the run whose weights it starts from, if that is not in `home`. Where bfloat16 is slower than float32 a
    training takes float32; one that has begun, perhaps on another machine, keeps its precision.
    """
    network = NETWORKS[name]
    changes: dict[str, Any] = dict(network.full if budget == "full" else network.cpu)
    if "amp" in changes and Run(home / name).recipe_file.exists():
        changes["amp"] = recipe_of(Run(home / name)).amp
    elif changes.get("amp") == "bf16" and emulates_bf16(pick_device(device)):
        changes["amp"] = "off"
    data = changes.get("data") or load_recipe(network.recipe, build=False).data
    if budget == "smoke":
        data = STAND_INS[data]
        defense = load_recipe(network.recipe, changes).defense
        known = (
            field_names(DEFENSES[defense["name"]]) if defense.get("steps", 0) > _SMOKE_SEARCH["defense.steps"] else ()
        )
        search = {key: value for key, value in _SMOKE_SEARCH.items() if key.partition(".")[2] in known}
        changes |= {**_SMOKE, **search, "validation": _SMOKE_HELD_OUT[data]}
    changes["data"] = str(home / "data" / f"{data}.npz") if data in MADE else data
    if network.start:
        changes["weights"] = str(start or home / network.start)
    return load_recipe(network.recipe, changes)
