"""Updates of the weights: optimizers by name, learning rate schedules, weight averaging."""

from atent.optim.averaging import averaged
from atent.optim.entropy_sgd import EntropySGD
from atent.optim.optimizers import OPTIMIZERS, Adam, AdamW, Drawing, Entropy, Optimizer, Sgd
from atent.optim.outside import make_optimizer, make_rates
from atent.optim.schedule import Rates, Schedule

__all__ = [
    "OPTIMIZERS",
    "Adam",
    "AdamW",
    "Drawing",
    "Entropy",
    "EntropySGD",
    "Optimizer",
    "Rates",
    "Schedule",
    "Sgd",
    "averaged",
    "make_optimizer",
    "make_rates",
]
