"""The arms of `entropy.py`: trainings and parts that are added to them, with equal budgets."""

from typing import Any, NamedTuple

from equal_budget import sized, time_of

from atent.errors import unknown
from atent.recipe import Recipe, load_recipe

# Gradients of a loss with respect to an image per second: one core, batch 128, the other core busy.
# wide-cnn: from LOG.md, 2026-11-18: 96,000 images where small-cnn has 130,434.
RATE = {"small-cnn": 1200, "wide-cnn": 900, "lenet5": 900, "lenet": 2100}
# The recipes that arms change.
LINF, L2, SMOOTH = "mnist-linf-pgd-quick", "mnist-l2-zoo", "mnist-smooth-adv"
SIGMA = 0.5
Changes = dict[str, Any]


def steps(count: int, reach: float) -> Changes:
    return {"defense.name": "pgd-at", "defense.steps": count, "defense.reach": reach}


SAMPLES: Changes = {"defense.name": "atent", "defense.sigma": SIGMA, "defense.start": "center", "defense.mode": "train"}
SAMPLES |= {"defense.project": "never", "defense.tolerance": 0.1}
TRAININGS: dict[str, tuple[str, Changes]] = {
    **{
        f"k{count}": (LINF, steps(count, reach))
        for count, reach in ((1, 1.25), (2, 1.6), (3, 1.8), (5, 2.0), (10, 2.0))
    },
    # Steps that shrink: from 2 to .1 radii, from 2 to .25, then 1, .63, .4, and 1.2, .6.
    "d10": (LINF, steps(10, 6.81) | {"defense.decay": 0.05}),
    "d5": (LINF, steps(5, 4.57) | {"defense.decay": 0.125}),
    "d3": (LINF, steps(3, 2.03) | {"defense.decay": 0.4}),
    "d2": (LINF, steps(2, 1.8) | {"defense.decay": 0.5}),
    # As its authors' MNIST script: Adam, one cycle, no warm-up of eps, no averaging.
    "fast": (
        LINF,
        {"defense.name": "fast", "defense.start": "unboxed", "batch": 100, "averaging": 0.0}
        | {"optimizer.name": "adam", "optimizer.lr": 5e-3, "schedule.warmup": 0.4, "schedule.eps_warmup": 0.0},
    ),
    "n-fgsm": (LINF, {"defense.name": "n-fgsm"}),
    "l2-atent": (L2, {"schedule.eps_peak": 1.0}),
    **{
        f"l2-k{count}": (L2, steps(count, reach) | {"schedule.eps_peak": 1.0})
        for count, reach in ((3, 2.0), (5, 2.5), (10, 2.5))
    },
    "gaussian": (SMOOTH, {"defense.name": "gaussian", "defense.sigma": SIGMA}),
    "consistency": (SMOOTH, {"defense.name": "consistency", "defense.sigma": SIGMA, "defense.beta": 5.0}),
    "smooth-adv": (SMOOTH, {"defense.draws": 1, "defense.steps": 4}),
    # SmoothAdv and consistency together: two draws, one step.
    "smooth-both": (
        SMOOTH,
        {"defense.draws": 2, "defense.steps": 1, "defense.reach": 1.0, "defense.beta": 5.0, "defense.eta": 0.5},
    ),
    "atent-k4": (SMOOTH, SAMPLES | {"defense.steps": 4, "defense.pull": "auto", "defense.share": 0.9}),
    "atent-k1": (SMOOTH, SAMPLES | {"defense.steps": 1, "defense.reach": 1.0}),
}
PARTS: dict[str, Changes] = {
    **{f"t{value:g}": {"defense.temperature": value} for value in (0.25, 0.5, 1.0)},
    **{f"e{value:g}": {"schedule.eps_peak": value} for value in (1.1, 1.25, 1.5)},
    **{f"r{value:g}": {"defense.reach": value} for value in (4.0, 6.0, 8.0)},
    **{f"leak{value:g}": {"defense.leak": value} for value in (0.01, 0.03, 0.1)},
    "w0.8": {"schedule.eps_warmup": 0.8},  # the radius grows for 16 % of the training instead of 32 %
    "b64": {"batch": 64},
    "b32": {"batch": 32},
    "b16": {"batch": 16},
    "float32": {"amp": "off"},
    "lenet": {"model": "lenet"},
    "wide": {"model": "wide-cnn"},
    "2k": {"validation": 58_000, "epochs": 40},
    "trades": {"defense.name": "trades"},
    "mart": {"defense.name": "mart"},
    "awp": {"awp": 0.01, "awp_start": 0.1},  # the size of its authors for PGD training; for TRADES .005
    "awp0.005": {"awp": 0.005, "awp_start": 0.1},
    "no-averaging": {"averaging": 0.0},
    "soft-labels": {"defense.label_smoothing": 0.1},
    "gibbs": {"gibbs": 1.0},
    "decay5e-4": {"optimizer.weight_decay": 5e-4},
    "shift": {"augment": "shift"},
    "affine": {"augment": "affine"},
}
WINNER = "d5+b32"  # of few-steps and shrinking, at a learning rate of .03; the groups after it follow
GROUPS: dict[str, list[str]] = {
    "few-steps": [f"{arm}+b32{noise}" for noise in ("", "+t0.5") for arm in ("k10", "k5", "k3", "k2", "k1")] + ["fast"],
    "batch": ["d3", "d3+b64", "d3+b32", "d3+b16", "k10", "k10+b32"],
    "shrinking": [f"{arm}+b32{noise}" for noise in ("", "+t0.5") for arm in ("d10", "d5", "d3", "d2")],
    "noise": [f"{WINNER}{noise}" for noise in ("", "+t0.25", "+t0.5", "+t1")],
    "overfitting": [f"{arm}+2k" for arm in ("k10+b32", WINNER, f"{WINNER}+t0.5", f"{WINNER}+t1")],
    "l2": [
        *("l2-atent+e1.1", "l2-k5", "l2-k5+trades", "l2-k5+r6", "l2-k10+r8"),
        *(f"l2-k5+r6+e1.25{part}" for part in ("", "+t0.25", "+awp")),
    ],
    "smoothing": ["gaussian", "consistency", "smooth-adv", "atent-k4", "atent-k1", "smooth-both"],
    "additions": [WINNER, *(f"{WINNER}+{part}" for part in ("awp", "no-averaging", "soft-labels", "gibbs"))],
}


class Job(NamedTuple):
    """One network: its arm, and what else decides its training."""

    arm: str
    minutes: float
    lr: float
    seed: int
    data: str = "mnist"

    @property
    def name(self) -> str:
        data = "" if self.data == "mnist" else f"-{self.data}"
        length = "" if "2k" in self.arm.split("+") else f"-{self.minutes:g}m"
        return f"{self.arm}{data}{length}-lr{self.lr:g}-{self.seed}"


def changes_of(arm: str) -> tuple[str, Changes]:
    """The recipe that an arm changes, and the changes."""
    first, *parts = arm.split("+")
    if first not in TRAININGS:
        raise unknown("training", first, TRAININGS, f"arm {arm}")
    base, changes = TRAININGS[first]
    for part in parts:
        if part not in PARTS:
            raise unknown("part", part, PARTS, f"arm {arm}")
        changes = changes | PARTS[part]
    return base, changes


def recipe_for(job: Job, total: int) -> Recipe:
    """The recipe of an arm with the length that its budget allows; `total`: the images of the training split."""
    base, changes = changes_of(job.arm)
    shared = {"data": job.data, "seed": job.seed, "optimizer.lr": job.lr, "monitor_examples": 300}
    shared["amp"] = "bf16"
    recipe = load_recipe(base, shared | changes)
    if "epochs" in changes:
        return recipe
    return sized(recipe, 60 * job.minutes * RATE[recipe.model] / time_of(recipe), total, total // 12)
