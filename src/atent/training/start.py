"""The state in which a training begins: the network with its first weights, and the optimizer."""

from pathlib import Path

import torch
from torch import nn

from atent.data.dataset import DataSet, open_data
from atent.data.given import Given
from atent.data.images import Images, hold_out
from atent.data.published import SOURCES
from atent.errors import UserError
from atent.models.accelerated import accelerated
from atent.models.build import build_model
from atent.models.outside import PRETRAINED
from atent.models.standardize import Standardized
from atent.models.weights import freeze, load_pretrained, load_weights
from atent.network import Shape
from atent.optim.averaging import averaged
from atent.randomness import derive, derive_seed
from atent.recipe import Recipe
from atent.storage.run import Run
from atent.training.loss_scale import LossScale
from atent.training.options import TrainingOptions
from atent.training.state import State
from atent.training.step import new_memory


def split(recipe: Recipe, images: Images) -> tuple[Images, Images]:
    """The images that the recipe trains on, and those that it holds out."""
    return hold_out(images, recipe.validation, derive(recipe.split_seed, "hold-out"))


def make_model(recipe: Recipe, images: Images, network: nn.Module | None = None) -> nn.Module:
    """Build the network for these images, or use the given one; add a standardizing layer if the recipe says so."""
    built = build_model(network or recipe.model, images.shape)
    if not recipe.standardize:
        return built
    known = SOURCES.get(recipe.data)
    mean, std = (known.mean, known.std) if known else images.mean_and_std()
    return Standardized(built, mean, std)


def initial_state(recipe: Recipe, train: Images, network: nn.Module | None, how: TrainingOptions) -> State:
    """The state before the first batch. The weights are drawn with the recipe's seed."""
    torch.manual_seed(derive_seed(recipe.seed, "weights"))
    model = make_model(recipe, train, network).to(device=how.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    freeze(model, recipe.freeze)
    average = averaged(model, recipe.averaging) if recipe.averaging else None
    defense, optimizer, _ = recipe.methods
    memory = new_memory(defense, len(train), recipe.make_threat())
    state = State(model, optimizer(model.parameters()), average, memory)
    state.running = accelerated(model, recipe.amp, compiled=how.compile)
    state.scale = LossScale() if recipe.amp == "fp16" else None
    return state


def load_start(model: nn.Module, recipe: Recipe, shape: Shape) -> str:
    """Load the weights that the recipe starts from, a file's or a library's; returns their sha256."""
    if recipe.weights == PRETRAINED:
        return load_pretrained(model, recipe.model, shape.classes, recipe.reset)
    return load_weights(model, Path(str(recipe.weights)), recipe.reset)


def training_data(recipe: Recipe, data_dir: Path | None, given: Given | None, run: Run) -> DataSet:
    """The images of the recipe, or those `given`, which must be the ones that the run was trained on before."""
    known = run.data_record()
    if given is None:
        scale = {"resize": recipe.resize, "white": recipe.white}
        return open_data(run.place_of(recipe.data), data_dir, **scale, test_share=recipe.test_share, known=known)
    if known is not None and known != given.record:
        raise UserError(f"the images are not those that {run.folder} was trained on; allowed: the same, or another out")
    return given
