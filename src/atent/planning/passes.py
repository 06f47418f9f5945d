"""The passes of a recipe's training step, per image, averaged over the training."""

from collections.abc import Callable

from atent.defenses.cost import passes_per_image
from atent.network import Passes
from atent.recipe import Recipe


def gradients(recipe: Recipe) -> int:
    """How many gradients of the loss the optimizer computes per batch."""
    return int(recipe.optimizer["steps"]) if recipe.optimizer["name"] == "entropy-sgd" else 1


def mean_cost(recipe: Recipe, cost: Callable[[Passes], float]) -> float:
    """The cost per image, averaged over the training: AWP, if there is any, acts in the part after `awp_start`."""
    parts = [(recipe.awp_start, False), (1 - recipe.awp_start, True)] if recipe.awp else [(1.0, False)]
    defense, threat = recipe.methods.defense, recipe.make_threat()
    counts = [(part, passes_per_image(defense, threat, awp=awp)) for part, awp in parts]
    return gradients(recipe) * sum(part * cost(passes) for part, passes in counts)
