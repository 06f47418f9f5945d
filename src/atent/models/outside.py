"""Networks of timm and torchvision, for users who have them."""

import importlib
from collections.abc import Callable
from types import ModuleType

from torch import nn

from atent.errors import UserError
from atent.models.shape import Shape


def outside_model(name: str) -> Callable[[Shape], nn.Module] | None:
    """`timm:resnet18` or `torchvision:resnet18` with random weights (--weights loads some); None for other names."""
    library, _, model = name.partition(":")
    if library == "timm":
        timm = _import(library, name)
        return lambda shape: timm.create_model(model, num_classes=shape.classes, in_chans=shape.image[0])
    if library == "torchvision":
        models = _import("torchvision.models", name)
        return lambda shape: models.get_model(model, num_classes=shape.classes)
    return None


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a build that does not fit the torch installed
        raise UserError(f"model {name!r}: cannot import {module}: {str(error).splitlines()[0]}") from None
