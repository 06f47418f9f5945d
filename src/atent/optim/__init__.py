"""How the weights move: optimizers by name, schedules as functions of the time, the average of the weights."""

from atent.optim.averaging import averaged
from atent.optim.entropy_sgd import EntropySGD
from atent.optim.optimizers import OPTIMIZERS, Adam, Drawing, Entropy, Optimizer, Sgd
from atent.optim.schedule import Schedule

__all__ = ["OPTIMIZERS", "Adam", "Drawing", "Entropy", "EntropySGD", "Optimizer", "Schedule", "Sgd", "averaged"]
