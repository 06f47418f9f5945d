"""Networks: `MODELS[name](shape)` builds one with random weights; also users' own networks, and weights from files."""

from atent.models.build import MODELS, is_built_in
from atent.models.ensemble import Ensemble
from atent.models.lenet import LeNet
from atent.models.lenet5 import LeNet5
from atent.models.outside import is_users, outside_model
from atent.models.resnet import ResNet
from atent.models.small_cnn import SmallCnn, WideCnn
from atent.models.standardize import Standardize, Standardized
from atent.models.wide_resnet import WideResNet
from atent.network import Shape

__all__ = [
    "MODELS",
    "Ensemble",
    "LeNet",
    "LeNet5",
    "ResNet",
    "Shape",
    "SmallCnn",
    "Standardize",
    "Standardized",
    "WideCnn",
    "WideResNet",
    "is_built_in",
    "is_users",
    "outside_model",
]
