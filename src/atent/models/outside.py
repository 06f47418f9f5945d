"""Networks of timm and torchvision, if these libraries are installed."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from torch import nn

from atent.errors import UserError
from atent.methods import is_imported
from atent.network import Shape

LIBRARIES = ("timm", "torchvision")
PRETRAINED = "pretrained"  # in the place of a weights file: those that the library publishes for the network


def is_users(name: str) -> bool:
    """Whether the name is a user's own `package.module:function`; building such a network runs the user's code."""
    return is_imported(name) and name.partition(":")[0] not in LIBRARIES


class Pretrained(NamedTuple):
    """A network with the weights that its library publishes, and the mean and deviation of its standardization."""

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]


def is_library(name: str) -> bool:
    """Whether the name is that of a network of timm or torchvision."""
    return is_imported(name) and name.partition(":")[0] in LIBRARIES


def pretrained_model(name: str) -> Pretrained:
    """`timm:resnet18` or `torchvision:resnet18` with the library's weights, which it downloads if it has not yet."""
    if not is_library(name):
        raise UserError(f"pretrained weights of {name!r}; allowed: of timm:NAME or torchvision:NAME")
    outside_model(name)  # refuses unknown names
    library, _, model = name.partition(":")
    try:
        if library == "timm":
            network = _import(library, name).create_model(model, pretrained=True)
            known = network.pretrained_cfg
            return Pretrained(network, tuple(known["mean"]), tuple(known["std"]))
        models = _import("torchvision.models", name)
        weights = models.get_model_weights(model).DEFAULT
        preset = weights.transforms()
        return Pretrained(models.get_model(model, weights=weights), tuple(preset.mean), tuple(preset.std))
    except UserError:
        raise
    except Exception as error:  # each library has its own for a failed download or a network without weights
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"no pretrained weights of {name!r}: {type(error).__name__}: {reason}") from error


def outside_model(name: str) -> Callable[[Shape], nn.Module] | None:
    """`timm:resnet18` or `torchvision:resnet18` with random weights (--weights loads some); None for other names.

    A file may contain such a name. So only names in the library's own list of classifiers are accepted, and nothing
    is downloaded: not `timm:hf-hub:...`, not torchvision's segmentation networks, whose backbones have weights.
    """
    library, _, model = name.partition(":")
    if library == "timm":
        timm = _import(library, name)
        _check_known(timm.is_model(model), name, "timm.list_models()")
        return lambda shape: timm.create_model(
            model, pretrained=False, num_classes=shape.classes, in_chans=shape.image[0]
        )
    if library == "torchvision":
        models = _import("torchvision.models", name)
        _check_known(model in models.list_models(module=models), name, "torchvision.models.list_models()")
        return lambda shape: models.get_model(model, weights=None, num_classes=shape.classes)
    return None


def _check_known(known: bool, name: str, names: str) -> None:
    if not known:
        raise UserError(f"unknown model {name!r}; known: classifiers of {names}")


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another version of torch
        package = module.partition(".")[0]
        reason = str(error).splitlines()[0]
        raise UserError(f"model {name!r}: cannot import {module}: {reason}; pip install {package}") from None
