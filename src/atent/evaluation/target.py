"""What is evaluated: a trained network (run folder, weights file or function) and its test images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from atent import __version__
from atent.data.dataset import DataSet, open_data
from atent.data.given import GIVEN
from atent.data.images import Images
from atent.data.published import SOURCES, is_fetched
from atent.errors import UserError, unknown
from atent.evaluation.trained import check_trusted, find_weights, is_function, load_network, run_of
from atent.methods import readable
from atent.models import Shape
from atent.models.accelerated import Accelerated, Precision, accelerated
from atent.models.build import build_trained
from atent.models.weights import weights_hash
from atent.network import unwrap_logits
from atent.progress import say
from atent.recipe import Recipe
from atent.smoothing.smoothed import Smoothed
from atent.storage.run import Run
from atent.zoo.index import entry_of, is_zoo, own_folder


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
        network = self.network
        if isinstance(network, Smoothed):
            header |= {"smooth": network.sigma, "draws": network.draws}
            network = network.network
        if isinstance(network, Accelerated):
            header["amp"] = network.precision
        if self.digest:
            header["images"] = self.digest
        return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # as it will be read: tuples become lists


@readable
def open_target(
    name: str | Path,
    *,
    model: str | nn.Module | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    resize: int | None = None,
    white: int | None = None,
    examples: int | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> Target:
    """Load a run folder's best weights, `zoo:NAME`, or a weights file; a foreign file's model and data must be named.

    A pretrained network of MNIST gets the packaged part of it where MNIST was not fetched.
    A `package.module:function` that only the file names is imported and called with `trust`, else refused.
    Or call `package.module:function`, which returns a network with its weights; its data must be named.
    """
    if is_function(name):
        found = None if data is None else open_data(data, data_dir, resize=resize, white=white)
        return _open_function(str(name), model, data, found, examples=examples, device=device)
    path = Path(name)
    weights, recipe = find_weights(path)
    if recipe and not model:
        check_trusted(recipe.model, path, trust, f"name it yourself with --model {recipe.model!r}")
    build = model or (recipe.model if recipe else None)
    where = data or (recipe.data if recipe else None)
    if is_zoo(path):
        where = _of_zoo(path, model, data, data_dir)
    if build is None or where is None:
        raise UserError(f"{path} does not say what it is, so {'--model' if build is None else '--data'} must be given")
    images, shown = _test_images(where, data_dir, resize, white, recipe, run_of(path, weights))
    images = images.first(examples)
    network, digest = load_network(build, recipe, weights, images.shape, device)
    unwrap_logits(network)
    folder = path if path.is_dir() else Path("runs") / f"{path.stem}-{digest[:6]}"
    called = build if isinstance(build, str) else type(build).__name__
    if is_zoo(path):
        folder, called = own_folder(path), str(path)
    threat, smooth = (recipe.threat, recipe.smooth) if recipe else (None, 0.0)
    return Target(network, digest, called, images, where, threat, folder, shown, smooth)


def in_precision(target: Target, amp: str) -> Target:
    """The same target with the passes of its network in this precision."""
    if amp not in get_args(Precision):
        raise unknown("amp", amp, get_args(Precision))
    return replace(target, network=accelerated(target.network, amp).eval())  # type: ignore[arg-type]  # it was checked


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
    if is_function(name):
        return build_trained(str(name), shape).to(device).eval()
    weights, recipe = find_weights(Path(name))
    if recipe and recipe.model != model:
        check_trusted(recipe.model, Path(name), trust, "give a package.module:function that makes it with its weights")
    model = entry_of(model).model if is_zoo(model) else model
    return load_network(recipe.model if recipe else model, recipe, weights, shape, device)[0]


def _of_zoo(name: Path, model: str | nn.Module | None, data: str | None, data_dir: Path | None) -> str:
    """The data of a pretrained network: what it was trained on or, where that was not fetched, its packaged part."""
    if model is not None:
        raise UserError(f"--model {model} with {name}, which has its own network")
    trained_on = entry_of(name).data
    small = f"{trained_on}-small"
    if data or data_dir or small not in SOURCES or is_fetched(trained_on):
        return data or trained_on
    count = SOURCES[small].counts[1]
    say(f"{trained_on} was not fetched (atent data fetch {trained_on}): taking the {count:,} test images of {small}")
    return small


def _open_function(
    name: str,
    model: str | nn.Module | None,
    data: str | None,
    found: DataSet | None,
    *,
    examples: int | None,
    device: torch.device | str,
) -> Target:
    if model is not None:
        raise UserError(f"--model {model} with the target {name}, which is a function that makes its own network")
    if data is None or found is None:
        raise UserError(f"{name} does not say its data, so --data must be given")
    images = found.images("test").first(examples)
    network = build_trained(name, images.shape).to(device).eval()
    digest = weights_hash(network)
    folder = Path("runs") / f"{name.partition(':')[2]}-{digest[:6]}"
    return Target(network, digest, name, images, data, None, folder, found.digest)


def every_image(target: Target, every: int, examples: int | None) -> Target:
    """The same target with every `every`-th of its images, and of those the first `examples`."""
    return replace(target, images=target.images.take(slice(None, None, every)).first(examples))


def _test_images(
    data: str, data_dir: Path | None, resize: int | None, white: int | None, recipe: Recipe | None, run: Run
) -> tuple[Images, str]:
    """The test images, of a user's own data those that the run kept out of its training; and a digest of them."""
    if recipe is None:
        found = open_data(data, data_dir, resize=resize, white=white)
        return found.images("test"), found.digest
    place, record = run.place_of(recipe.data), run.data_record() or {}
    trained_on = data == recipe.data or Path(data).resolve() == Path(place).resolve()
    if trained_on and record and not Path(place).exists() and not data.endswith(GIVEN):
        raise UserError(f"{run.folder} was trained on {data}, which is not there; if it has moved: --data NEW-PLACE")
    known = record if trained_on or (resize is None and _holds(Path(data), record)) else None
    scale = {"resize": resize or recipe.resize, "white": white or recipe.white}
    found = open_data(place if trained_on else data, data_dir, **scale, test_share=recipe.test_share, known=known)
    images = found.images("test")
    trained = tuple(record.get("train", images.classes))
    if images.classes != trained:
        raise UserError(f"{data} has the classes {', '.join(images.classes)}; {run.folder} knows {', '.join(trained)}")
    return images, found.digest


def _holds(folder: Path, record: Mapping[str, Any]) -> bool:
    """Whether a folder has all test images of a run's record: it is the run's data, moved."""
    tests = record.get("test")
    return isinstance(tests, dict) and all((folder / name).is_file() for names in tests.values() for name in names)
