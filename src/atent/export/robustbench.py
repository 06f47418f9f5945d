"""The model-info file of RobustBench, as far as the rows know it."""

from collections.abc import Sequence
from typing import Any

from atent.recipe import Recipe
from atent.report.records import Record

LISTED = ("cifar10", "cifar100", "imagenet")
TO_FILL = ("link", "name", "authors", "venue")  # about the paper; no row has them


def model_info(recipe: Recipe, found: Sequence[Record]) -> dict[str, Any]:
    """The fields of RobustBench's JSON. AutoAttack's accuracy is that on the most images, "" if there is none."""
    threat = recipe.make_threat()
    mine = [one for one in found if one["kind"] == "attack" and one["threat"] == str(threat)]
    by_autoattack = [one for one in mine if str(one["method"]).lower().startswith("autoattack")]
    best = max(by_autoattack or mine, key=lambda one: one["images"], default=None)
    return {
        **dict.fromkeys(TO_FILL, ""),
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": recipe.data,
        "architecture": recipe.model,
        "eps": str(threat).partition(":")[2],
        "clean_acc": f"{100 * best['clean']:.2f}" if best else "",
        "reported": "",
        "autoattack_acc": f"{100 * best['robust']:.2f}" if best and by_autoattack else "",
        "unreliable": False,
    }


def missing(info: dict[str, Any]) -> list[str]:
    """What RobustBench asks for and the file lacks, in words."""
    lacks = [f"fill in {', '.join(TO_FILL)} and reported"]
    if info["dataset"] not in LISTED:
        lacks.append(f"RobustBench lists {', '.join(LISTED)}, not {info['dataset']}")
    if not info["autoattack_acc"]:
        lacks.append("it has no AutoAttack: atent attack RUN --attack autoattack on all test images gives it")
    return lacks
