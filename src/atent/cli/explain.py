"""`atent show METHOD`: what a method does, and its fields."""

import dataclasses
import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from atent.limits import LARGEST, MOST

# Of a field with another meaning in one method, the key has the method's name.
MEANINGS = {
    "attacks": "tables of the attacks, in this order, each with a name",
    "beta": "weight of the second term of the loss",
    "called": "the name in tables",
    "candidates": "classes whose boundary is tried, the most probable ones",
    "confidence": "margin by which a point must be misclassified",
    "constant": "first weight of the margin compared with the squared distance",
    "decay": "last step / first step; 1: all are equal",
    "direction": "steepest: sign (linf), unit gradient (l2); raw: the gradient itself",
    "draws": "noisy copies of each image",
    "gamma": "strength of the pull towards the weights before the steps",
    "growth": "by how much gamma grows per update, as a share",
    "hinge": "the largest margin that is trained for, in radii of the threat",
    "eta": "weight of the entropy of the mean prediction",
    "label_smoothing": "share of the label that is spread over all classes",
    "leak": "derivative of ReLU where it is off, in the search",
    "least": "the smallest radius of the search, in radii of the threat",
    "loss": "what the attack increases",
    "lr": "learning rate, multiplied by the schedule",
    "mode": "mode of the network during the search",
    "momentum": "momentum",
    "nesterov": "Nesterov's momentum",
    "noise": "normal noise of sqrt(2 step) noise in each step",
    "overshoot": "share by which the step to the boundary is lengthened",
    "p_init": "share of the pixels that the first squares cover",
    "patience": "above 0: images that gain too little are given up",
    "precision": "difference of the cubes at which the bisection stops, as a share",
    "project": "when a point is projected to the ball",
    "pull": "strength of the pull towards x; auto: the chain ends at radius eps",
    "pull_rate": "above 0: the pull adapts, until points end at radius eps",
    "queries": "forward passes per image, at most",
    "rate": "step of the optimizer",
    "reach": "sum of all steps, in radii of the threat",
    "restarts": "runs from new random starts; all must fail for an image to be robust",
    "searches": "rounds of the search",
    "share": "weight of a new sample in the average",
    "sigma": "standard deviation of the noise",
    "start": "where the search starts",
    "start_scale": "radius of the ball of the start, in radii of the threat",
    "step": "size of a step; none: reach * eps / steps",
    "steps": "number of steps",
    "targets": "classes that the targeted loss aims at, the most probable ones",
    "temperature": "noise of each step, compared with the step",
    "tolerance": "samples with at most this share carry no weight gradient",
    "version": "set of attacks of the library",
    "weight_decay": "weight decay",
    "entropy-sgd.step": "size of a Langevin step",
    "entropy-sgd.steps": "Langevin steps per update",
    "entropy-sgd.noise": "noise of a Langevin step",
    "entropy-sgd.share": "weight of a new step in the average of the weights",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_NUMBERS = {int: "integer", float: "number", bool: "true or false", str: "text"}


def methods() -> dict[str, tuple[str, Any]]:
    """Every method by its name: its kind and its class."""
    from atent.attacks import ATTACKS, OUTSIDE, Cascade
    from atent.defenses import DEFENSES
    from atent.optim.optimizers import OPTIMIZERS

    tables: dict[str, Mapping[str, Any]] = {
        "attack": {**ATTACKS, **OUTSIDE, "cascade": Cascade},
        "defense": DEFENSES,
        "optimizer": OPTIMIZERS,
    }
    return {name: (kind, build) for kind, table in tables.items() for name, build in table.items()}


def explain(name: str) -> None:
    """Print a method's description, its fields and how to set one."""
    from atent.report.terminal import print_table, tell

    kind, build = methods()[name]
    for paragraph in (inspect.getdoc(build) or "").split("\n\n"):
        is_formula = paragraph.startswith(" ")
        for line in paragraph.splitlines() if is_formula else [" ".join(paragraph.split())]:
            tell(line, indent=8 if is_formula else 0)
        print()
    rows = [[field, *row] for field, row in fields(name, build).items()]
    if not rows:
        tell(f"The {kind} {name} has no fields.")
        return
    print_table(f"Fields of the {kind} {name}", ["field", "default", "allowed", "meaning"], rows)
    place = f"atent attack TARGET --attack {name} --set " if kind == "attack" else f"atent train RECIPE --set {kind}."
    tell(f"Set one: {place}{rows[0][0]}=VALUE")


def fields(name: str, build: Any) -> dict[str, list[str]]:
    """The default, the allowed values and the meaning of each field that a user can set."""
    hints = get_type_hints(build, include_extras=True)
    return {
        field.name: [
            _default(field),
            "a list of tables" if field.name == "attacks" else allowed(hints[field.name]),
            MEANINGS.get(f"{name}.{field.name}", MEANINGS.get(field.name, "")),
        ]
        for field in dataclasses.fields(build)
        if field.init and field.name != "settings"
    }


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        return "APGD, Square" if field.name == "attacks" else ""
    return "none" if field.default in (None, "") else f"{field.default}".lower()


def allowed(hint: Any) -> str:
    """The values of a field in words, such as `integer >= 1`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join("none" if one is NoneType else allowed(one) for one in arguments)
    if origin is Annotated:
        limits = [limit for about in arguments[1:] for limit in about.metadata]
        ends = [(sign, getattr(one, key, None)) for one in limits for key, sign in _SIGNS.items()]
        words = [f"{sign} {end:g}" for sign, end in ends if end not in (None, MOST, LARGEST)]
        return f"{allowed(arguments[0])} {', '.join(words)}"
    return _NUMBERS.get(hint, str(hint))
