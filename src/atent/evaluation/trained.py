"""A trained network, opened from a run folder or a weights file."""

from pathlib import Path

import torch
from torch import nn

from atent.data.dataset import open_data
from atent.data.published import SOURCES
from atent.errors import UserError
from atent.methods import readable
from atent.models import Shape, Standardized, is_users
from atent.models.build import build_model
from atent.models.weights import load_weights
from atent.recipe import Recipe, parse_recipe, recipe_of
from atent.storage.files import load_tensors
from atent.storage.run import Run
from atent.zoo.index import is_zoo, weights_file


@readable
def load(
    run: str | Path,
    *,
    model: str | nn.Module | None = None,
    data_dir: Path | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> nn.Module:
    """The network of a run with its best weights, in eval mode. It takes pixels in [0, 1] and returns logits.

    Args:
        run: A run folder, a checkpoint of ours, or `zoo:NAME`, a pretrained network (`atent zoo` lists them).
        model: The network if it was trained as an object, or its `package.module:function`. An object gets the weights.
        data_dir: The folder of the data set. It is read only if its images are an .npz file, for their shape.
        device: Where to put the network.
        trust: Whether to import and run a `package.module:function` that only the run names.
    """
    path = Path(run)
    weights, recipe = find_weights(path)
    if recipe is None:
        raise UserError(f"{path} is no run or checkpoint of atent; atent.open_target opens other files, with model=...")
    if not model:
        check_trusted(recipe.model, path, trust, f"name it yourself with model={recipe.model!r}")
    shape = shape_of(recipe, run_of(path, weights), data_dir)
    return load_network(model or recipe.model, recipe, weights, shape, device)[0]


def find_weights(path: Path) -> tuple[Path, Recipe | None]:
    """The file with the weights, and the recipe if it is a run, a checkpoint of ours or `zoo:NAME`."""
    if is_zoo(path):
        stored = weights_file(path)
        return stored, recipe_inside(stored)
    weights = Run(path).best if path.is_dir() else path
    if not weights.is_file():
        raise UserError(
            f"no weights at {weights}; expected a run folder of atent train, a weights file, zoo:NAME, or "
            f"package.module:function"
        )
    return weights, recipe_of(Run(path)) if path.is_dir() else recipe_inside(path)


def run_of(path: Path, weights: Path) -> Run:
    """The run that weights belong to: a folder, or that of their file."""
    return Run(path if path.is_dir() else weights.parent)


def recipe_inside(weights: Path) -> Recipe | None:
    """The recipe that a checkpoint of ours carries in its header."""
    info = load_tensors(weights)[1] if weights.suffix == ".safetensors" else {}
    return parse_recipe(info["recipe"], str(weights)) if "recipe" in info else None


def check_trusted(model: str, path: Path, trust: bool, cure: str) -> None:
    """Refuse to run what a file names, unless the user trusts the file."""
    if is_users(model) and not trust:
        raise UserError(
            f"{path} says that its network is made by {model!r}, which would be imported and run; if you know it, "
            f"{cure}, or give --trust to run what the file names"
        )


def shape_of(recipe: Recipe, run: Run, data_dir: Path | None) -> Shape:
    """The shape of the images that a network was trained on; the images are read only where nothing else has it."""
    if known := SOURCES.get(recipe.data):
        return Shape(known.image, len(known.classes))
    record = run.data_record() or {}
    if "image" in record:
        channels, height, width = record["image"]
        return Shape((channels, height, width), len(record.get("classes") or record["train"]))
    place = run.place_of(recipe.data)
    return open_data(place, data_dir, resize=recipe.resize, white=recipe.white, known=record).images("train").shape


def load_network(
    model: str | nn.Module, recipe: Recipe | None, weights: Path, shape: Shape, device: torch.device | str
) -> tuple[nn.Module, str]:
    """The network with these weights, and their hash."""
    network = build_model(model, shape)
    if recipe and recipe.standardize:
        channels = shape.image[0]
        network = Standardized(network, [0.0] * channels, [1.0] * channels)  # the weights hold its numbers
    digest = load_weights(network, weights)
    network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval(), digest


def is_function(name: str | Path) -> bool:
    return ":" in str(name) and not is_zoo(name) and not Path(name).exists()
