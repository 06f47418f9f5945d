"""The model-info file of RobustBench, as far as the rows know it."""

from collections.abc import Sequence
from typing import Any

from atent.data.published import SOURCES
from atent.recipe import Recipe
from atent.report.records import Record

LISTED = ("cifar10", "cifar100", "imagenet")
TO_FILL = ("link", "name", "authors", "venue")  # about the paper; no row has them


def model_info(recipe: Recipe, found: Sequence[Record]) -> dict[str, Any]:
    """The fields of RobustBench's JSON. AutoAttack's accuracy is "" unless it attacked all test images."""
    best, by_autoattack = _largest(recipe, found), _largest(recipe, found, "autoattack")
    whole = by_autoattack if by_autoattack and by_autoattack["images"] == _test_images(recipe.data) else None
    clean = whole or best
    return {
        **dict.fromkeys(TO_FILL, ""),
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": recipe.data,
        "architecture": recipe.model,
        "eps": str(recipe.make_threat()).partition(":")[2],
        "clean_acc": f"{100 * clean['clean']:.2f}" if clean else "",
        "reported": "",
        "autoattack_acc": f"{100 * whole['robust']:.2f}" if whole else "",
        "unreliable": False,
    }


def missing(recipe: Recipe, found: Sequence[Record]) -> list[str]:
    """What RobustBench asks for and the file lacks, in words."""
    lacks = [f"fill in {', '.join(TO_FILL)} and reported"]
    if recipe.data not in LISTED:
        lacks.append(f"RobustBench lists {', '.join(LISTED)}, not {recipe.data}")
    if model_info(recipe, found)["autoattack_acc"]:
        return lacks
    cure = "atent attack RUN --attack autoattack on all test images gives it"
    if part := _largest(recipe, found, "autoattack"):
        every = _test_images(recipe.data)
        of_all = f"{part['images']:,} of {every:,} test images" if every else f"{part['images']:,} images"
        return [*lacks, f"its AutoAttack is on {of_all}; {cure}"]
    return [*lacks, f"it has no AutoAttack: {cure}"]


def _largest(recipe: Recipe, found: Sequence[Record], method: str = "") -> Record | None:
    """The attack on most images at the recipe's threat, on the network neither smoothed nor in half precision."""
    threat = str(recipe.make_threat())
    mine = [one for one in found if one["kind"] == "attack" and one["threat"] == threat and not one["variant"]]
    named = [one for one in mine if str(one["method"]).lower().startswith(method)]
    return max(named, key=lambda one: one["images"], default=None)


def _test_images(data: str) -> int | None:
    return SOURCES[data].counts[1] if data in SOURCES else None
