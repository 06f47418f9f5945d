"""Updates of the weights: optimizers by name, learning rate schedules, weight averaging."""

from atent.optim.averaging import averaged
from atent.optim.entropy_sgd import EntropySGD
from atent.optim.optimizers import OPTIMIZERS, Adam, Drawing, Entropy, Optimizer, Sgd
from atent.optim.schedule import Schedule

__all__ = ["OPTIMIZERS", "Adam", "Drawing", "Entropy", "EntropySGD", "Optimizer", "Schedule", "Sgd", "averaged"]
