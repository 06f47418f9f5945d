"""Build a network by name, function or object, and check that it fits the images before any work."""

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from atent.errors import UserError, reason_of, unknown
from atent.methods import look_up
from atent.models.ensemble import MOST_MEMBERS, Ensemble, members_of
from atent.models.lenet import LeNet
from atent.models.lenet5 import LeNet5
from atent.models.outside import is_library, outside_model, pretrained_model
from atent.models.resnet import ResNet
from atent.models.small_cnn import SmallCnn, WideCnn
from atent.models.standardize import Standardized
from atent.models.wide_resnet import WideResNet
from atent.network import Shape, borrowed, logits_only, unwrap_logits

MODELS: dict[str, Callable[[Shape], nn.Module]] = {
    "small-cnn": SmallCnn,
    "wide-cnn": WideCnn,
    "lenet": LeNet,
    "lenet5": LeNet5,
    "resnet-20": partial(ResNet, blocks=(3, 3, 3), width=16, padded=True),
    "resnet-110": partial(ResNet, blocks=(18, 18, 18), width=16, padded=True),
    "resnet-18": partial(ResNet, blocks=(2, 2, 2, 2), width=64, padded=False),
    "wrn-28-4": partial(WideResNet, depth=28, widen=4),
    "wrn-28-10": partial(WideResNet, depth=28, widen=10),
    "wrn-34-10": partial(WideResNet, depth=34, widen=10),
}
OBJECT = " (a Python object)"  # end of the name of a network that was given as an object


def is_built_in(name: str) -> bool:
    """Whether the name is in MODELS, or that of an ensemble of such networks."""
    several = members_of(name)
    return (several[1] if several else name) in MODELS


def build_model(model: str | nn.Module, shape: Shape) -> nn.Module:
    """A network by built-in name, a user's `package.module:function`, `timm:resnet18` or `torchvision:resnet18`.

    `4*small-cnn` is an ensemble of four built-in networks. Where the outputs of a named network have a field `logits`,
    it returns that alone. A network that is given as an object is unchanged.
    """
    if isinstance(model, nn.Module):
        name, network = type(model).__name__, model
    else:
        name, network = model, _built(model, shape)
        if not is_built_in(model):
            unwrap_logits(network)
    return _fitting(name, network, shape)


def build_trained(name: str, shape: Shape) -> nn.Module:
    """A network with its weights: that of a user's `package.module:function`, or a pretrained one of a library.

    A library's gets its standardization as its first layer, so that it takes pixels in [0, 1].
    """
    if not is_library(name):
        return build_model(name, shape)
    found = pretrained_model(name)
    unwrap_logits(found.network)
    return _fitting(name, Standardized(*found), shape)


def _built(name: str, shape: Shape) -> nn.Module:
    if name.endswith(OBJECT):
        raise UserError(
            f"the network was {name}; give it again: --model package.module:function, in Python model=network"
        )
    if several := members_of(name):
        return _ensemble(name, *several, shape)
    build: Callable[..., nn.Module] = outside_model(name) or look_up(MODELS, name, "model")
    try:
        network = build(shape) if _wants_shape(build) else build()
    except (Exception, SystemExit) as error:  # the function is the user's: it may do anything
        raise UserError(f"model {name!r} failed on {shape}: {type(error).__name__}: {reason_of(error)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"model {name!r} returned {type(network).__name__}; expected a torch.nn.Module")
    return network


def _ensemble(name: str, count: int, member: str, shape: Shape) -> nn.Module:
    if not 2 <= count <= MOST_MEMBERS:
        raise UserError(f"model {name!r} has {count} members; allowed: 2 to {MOST_MEMBERS}")
    if member not in MODELS:
        raise unknown("model in an ensemble", member, MODELS)
    return Ensemble(MODELS[member](shape) for _ in range(count))


def _wants_shape(build: Callable[..., nn.Module]) -> bool:
    """Whether `build` takes the shape as an argument; a user's function may not need it."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return True
    given = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    required = any(p.default is p.empty and p.kind not in given for p in parameters.values())
    return required or "shape" in parameters


def _fitting(name: str, network: nn.Module, shape: Shape) -> nn.Module:
    """Run the network on two black images, to refuse one that does not fit the data before any work."""
    black = torch.zeros(2, *shape.image)
    try:
        with torch.no_grad(), logits_only(network):
            if any(map(is_lazy, network.parameters())):  # such a layer gets its size from its first input
                network.eval()(black)
                network.train()
            with borrowed(network):
                logits = network(black)
    except (Exception, SystemExit) as error:
        raise UserError(f"model {name!r} does not take images of shape {shape.image}: {reason_of(error)}") from error
    found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if found != (2, shape.classes):
        raise UserError(f"model {name!r} returned {found} for 2 images; expected logits of shape (2, {shape.classes})")
    return network
