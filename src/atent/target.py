"""What is to be judged: a trained network, from a run folder or a weights file, and the test images to try it on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from atent.data import Images, load
from atent.errors import UserError
from atent.recipe import Recipe, build_model, parse_recipe
from atent.runs import Run, load_tensors, load_weights


@dataclass(frozen=True)
class Target:
    """A network with its weights' hash, the images, and the threat it was trained for (None if not known)."""

    network: nn.Module
    weights: str
    model: str
    images: Images
    data: str
    threat: str | None
    folder: Path


def open_target(
    path: Path,
    *,
    model: str | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    examples: int | None = None,
    device: torch.device | str = "cpu",
) -> Target:
    """Load a run folder's best weights, or a weights file; a foreign file's model and data must be named."""
    weights = Run(path).best if path.is_dir() else path
    if not weights.is_file():
        raise UserError(f"no weights at {weights}; expected a run folder of atent train, or a weights file")
    recipe = Run(path).recipe() if path.is_dir() else recipe_inside(path)
    if recipe is not None:
        model, data = model or recipe.model, data or recipe.data
    if model is None or data is None:
        raise UserError(f"{path} does not say what it is, so {'--model' if model is None else '--data'} must be given")
    images = load(data, "test", data_dir)
    if examples is not None and not 1 <= examples <= len(images):
        raise UserError(f"--examples {examples}; allowed: 1 to {len(images)}")
    images = images.take(slice(examples))
    network = build_model(model, images.shape, data if recipe and recipe.standardize else None)
    digest = load_weights(network, weights)
    network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    folder = path if path.is_dir() else Path("runs") / f"{path.stem}-{digest[:6]}"
    return Target(network, digest, model, images, data, recipe.threat if recipe else None, folder)


def recipe_inside(weights: Path) -> Recipe | None:
    """The recipe that a checkpoint of ours carries in its header."""
    info = load_tensors(weights)[1] if weights.suffix == ".safetensors" else {}
    return parse_recipe(info["recipe"], str(weights)) if "recipe" in info else None
