"""What is evaluated: a trained network (run folder, weights file or function) and its test images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atent import __version__
from atent.data.dataset import open_data
from atent.data.images import Images
from atent.errors import UserError
from atent.models import Shape, Standardized, is_users
from atent.models.build import build_model
from atent.models.weights import load_weights, weights_hash
from atent.recipe import Recipe, parse_recipe, recipe_of
from atent.smoothing.smoothed import Smoothed
from atent.storage.files import load_tensors
from atent.storage.run import Run


@dataclass(frozen=True)
class Target:
    """A network with its weights' hash, and the images.

    From a recipe also: the threat that the network was trained for, and `smooth`, the deviation of the noise that it
    is smoothed with (0: none).
    """

    network: nn.Module
    weights: str
    model: str
    images: Images
    data: str
    threat: str | None
    folder: Path
    digest: str = ""  # of which images these are, where their name does not identify them
    smooth: float = 0.0

    def header(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The header of a file of rows: everything that decides the rows, in `settings` (with a `label`) and here.

        It also has what a reader of the rows needs: our version and the names of the classes.
        """
        header = {
            **settings,
            "data": self.data,
            "split": "test",
            "examples": len(self.images),
            "seed": seed,
            "model": self.model,
            "weights": self.weights,
            "version": __version__,
            "classes": self.images.classes,
        }
        if isinstance(self.network, Smoothed):
            header |= {"smooth": self.network.sigma, "draws": self.network.draws}
        if self.digest:
            header["images"] = self.digest
        return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # as it will be read: tuples become lists


def open_target(
    name: str | Path,
    *,
    model: str | nn.Module | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    resize: int | None = None,
    examples: int | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> Target:
    """Load a run folder's best weights, or a weights file; a foreign file's model and data must be named.

    A `package.module:function` that only the file names is imported and called with `trust`, else refused.
    Or call `package.module:function`, which returns a network with its weights; its data must be named.
    """
    if _is_function(name):
        return _open_function(str(name), model, data, data_dir, resize=resize, examples=examples, device=device)
    path = Path(name)
    weights, recipe = _find_weights(path)
    if recipe and not model:
        _check_trusted(recipe.model, path, trust, f"name it yourself with --model {recipe.model!r}")
    build = model or (recipe.model if recipe else None)
    where = data or (recipe.data if recipe else None)
    if build is None or where is None:
        raise UserError(f"{path} does not say what it is, so {'--model' if build is None else '--data'} must be given")
    images, shown = _test_images(where, data_dir, resize, recipe, Run(path if path.is_dir() else path.parent))
    images = _first(images, examples)
    network, digest = _load_network(build, recipe, weights, images.shape, device)
    folder = path if path.is_dir() else Path("runs") / f"{path.stem}-{digest[:6]}"
    called = build if isinstance(build, str) else type(build).__name__
    threat, smooth = (recipe.threat, recipe.smooth) if recipe else (None, 0.0)
    return Target(network, digest, called, images, where, threat, folder, shown, smooth)


def smooth_target(target: Target, sigma: float | None = None, draws: int = 16) -> Target:
    """The same target with its network smoothed by normal noise of this sigma (None: its recipe's; 0: not smoothed).

    Each prediction is the mean over `draws` draws of the noise.
    """
    sigma = target.smooth if sigma is None else sigma
    return replace(target, network=Smoothed(target.network, sigma, draws).eval()) if sigma else target


def open_network(
    name: str | Path, shape: Shape, model: str, device: torch.device | str = "cpu", *, trust: bool = False
) -> nn.Module:
    """A network alone, named like a target, for images of this shape; `model` builds it if the file names none.

    Another `package.module:function` that only the file names is refused without `trust`.
    """
    if _is_function(name):
        return build_model(str(name), shape).to(device).eval()
    weights, recipe = _find_weights(Path(name))
    if recipe and recipe.model != model:
        _check_trusted(recipe.model, Path(name), trust, "give a package.module:function that makes it with its weights")
    return _load_network(recipe.model if recipe else model, recipe, weights, shape, device)[0]


def _check_trusted(model: str, path: Path, trust: bool, cure: str) -> None:
    """Refuse to run what a file names, unless the user trusts the file."""
    if is_users(model) and not trust:
        raise UserError(
            f"{path} says that its network is made by {model!r}, which would be imported and run; if you know it, "
            f"{cure}, or give --trust to run what the file names"
        )


def _is_function(name: str | Path) -> bool:
    return ":" in str(name) and not Path(name).exists()


def _find_weights(path: Path) -> tuple[Path, Recipe | None]:
    """The file with the weights, and the recipe if it is a run or a checkpoint of ours."""
    weights = Run(path).best if path.is_dir() else path
    if not weights.is_file():
        raise UserError(
            f"no weights at {weights}; expected a run folder of atent train, a weights file, or package.module:function"
        )
    return weights, recipe_of(Run(path)) if path.is_dir() else recipe_inside(path)


def _load_network(
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


def _open_function(
    name: str,
    model: str | nn.Module | None,
    data: str | None,
    data_dir: Path | None,
    *,
    resize: int | None,
    examples: int | None,
    device: torch.device | str,
) -> Target:
    if model is not None:
        raise UserError(f"--model {model} with the target {name}, which is a function that makes its own network")
    if data is None:
        raise UserError(f"{name} does not say its data, so --data must be given")
    found = open_data(data, data_dir, resize=resize)
    images = _first(found.images("test"), examples)
    network = build_model(name, images.shape).to(device).eval()
    digest = weights_hash(network)
    folder = Path("runs") / f"{name.partition(':')[2]}-{digest[:6]}"
    return Target(network, digest, name, images, data, None, folder, found.digest)


def _first(images: Images, examples: int | None) -> Images:
    if examples is not None and not 1 <= examples <= len(images):
        raise UserError(f"--examples {examples}; allowed: 1 to {len(images)}")
    return images.take(slice(examples))


def every_image(target: Target, every: int, examples: int | None) -> Target:
    """The same target with every `every`-th of its images, and of those the first `examples`."""
    return replace(target, images=_first(target.images.take(slice(None, None, every)), examples))


def _test_images(
    data: str, data_dir: Path | None, resize: int | None, recipe: Recipe | None, run: Run
) -> tuple[Images, str]:
    """The test images, of a user's own data those that the run kept out of its training; and a digest of them."""
    if recipe is None:
        found = open_data(data, data_dir, resize=resize)
        return found.images("test"), found.digest
    place, record = run.place_of(recipe.data), run.data_record() or {}
    trained_on = data == recipe.data or Path(data).resolve() == Path(place).resolve()
    if trained_on and record and not Path(place).exists():
        raise UserError(f"{run.folder} was trained on {data}, which is not there; if it has moved: --data NEW-PLACE")
    known = record if trained_on or (resize is None and _holds(Path(data), record)) else None
    opened = place if trained_on else data
    found = open_data(opened, data_dir, resize=resize or recipe.resize, test_share=recipe.test_share, known=known)
    images = found.images("test")
    trained = tuple(record.get("train", images.classes))
    if images.classes != trained:
        raise UserError(f"{data} has the classes {', '.join(images.classes)}; {run.folder} knows {', '.join(trained)}")
    return images, found.digest


def _holds(folder: Path, record: Mapping[str, Any]) -> bool:
    """Whether a folder has all test images of a run's record: it is the run's data, moved."""
    tests = record.get("test")
    return isinstance(tests, dict) and all((folder / name).is_file() for names in tests.values() for name in names)


def recipe_inside(weights: Path) -> Recipe | None:
    """The recipe that a checkpoint of ours carries in its header."""
    info = load_tensors(weights)[1] if weights.suffix == ".safetensors" else {}
    return parse_recipe(info["recipe"], str(weights)) if "recipe" in info else None
