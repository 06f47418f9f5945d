"""The paper's networks: `MODELS[name](shape)` builds one with random weights."""

from collections.abc import Callable
from functools import partial

from torch import nn

from atent.models.lenet5 import LeNet5
from atent.models.outside import is_users, outside_model
from atent.models.resnet import ResNet
from atent.models.small_cnn import SmallCnn
from atent.models.standardize import Standardize
from atent.models.wide_resnet import WideResNet
from atent.shape import Shape

MODELS: dict[str, Callable[[Shape], nn.Module]] = {
    "small-cnn": SmallCnn,
    "lenet5": LeNet5,
    "resnet-20": partial(ResNet, blocks=(3, 3, 3), width=16, padded=True),
    "resnet-110": partial(ResNet, blocks=(18, 18, 18), width=16, padded=True),
    "resnet-18": partial(ResNet, blocks=(2, 2, 2, 2), width=64, padded=False),
    "wrn-28-4": partial(WideResNet, depth=28, widen=4),
    "wrn-28-10": partial(WideResNet, depth=28, widen=10),
    "wrn-34-10": partial(WideResNet, depth=34, widen=10),
}

__all__ = ["MODELS", "LeNet5", "ResNet", "Shape", "SmallCnn", "Standardize", "WideResNet", "is_users", "outside_model"]
