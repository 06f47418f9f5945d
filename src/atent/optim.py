"""How the weights move: optimizer, learning rate and eps warm-up as functions of the time, weight averaging."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from atent.entropy_sgd import EntropySGD
from atent.fields import Count, Fraction, Scale, Size, method


class Optimizer(Protocol):
    """How the weights move: builds a torch optimizer. Its `lr` is what the schedule multiplies."""

    @property
    def lr(self) -> float: ...

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer: ...


@method
class Sgd:
    """Stochastic gradient descent with momentum."""

    lr: Size = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Scale = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, **dataclasses.asdict(self))


@method
class Adam:
    """Adam."""

    lr: Size = 1e-3
    weight_decay: Scale = 0.0

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, **dataclasses.asdict(self))


@method
class Entropy:
    """Entropy-SGD, `atent.entropy_sgd.EntropySGD`: Langevin steps on the weights, then a step to their average."""

    lr: Size = 1.0
    steps: Count = 5
    step: Size = 0.1
    gamma: Scale = 1e-3
    growth: Scale = 0.0
    noise: Scale = 1e-4
    share: Fraction = 0.75
    weight_decay: Scale = 0.0

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return EntropySGD(parameters, **dataclasses.asdict(self))


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": Sgd, "adam": Adam, "entropy-sgd": Entropy}


@method
class Schedule:
    """The learning rate's factor and eps' share at a moment of the training, `done` of 1; no state to store.

    constant; step: times `factor` at each of `milestones` (epochs); cosine: to 0; one-cycle: up from 1/25 and down to
    0 along cosines. During the first `warmup` of the training the rate climbs. Eps climbs with it, in a straight line
    that takes `eps_warmup` times as long: the other way round, eps full while the rate is still low, MNIST at linf .3
    sticks at a constant prediction.
    """

    name: Literal["constant", "step", "cosine", "one-cycle"] = "constant"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    eps_warmup: Scale = 1.6
    milestones: tuple[Count, ...] = ()
    factor: Size = 0.1

    def rate(self, done: float, epochs: int) -> float:
        """The factor of the learning rate, in [0, 1] (more only if `factor` is)."""
        if done < self.warmup:
            climbed = done / self.warmup
            return 0.04 + 0.96 * (_cosine(1 - climbed) if self.name == "one-cycle" else climbed)
        if self.name in ("cosine", "one-cycle"):
            return _cosine((done - self.warmup) / (1 - self.warmup))
        if self.name == "step":
            # The tolerance keeps rounding in done * epochs from delaying a drop by a batch.
            return self.factor ** sum(done * epochs >= milestone - 1e-9 for milestone in self.milestones)
        return 1.0

    def eps_share(self, done: float) -> float:
        """The share of the threat's radius used in training at this moment."""
        length = self.warmup * self.eps_warmup
        return min(1.0, done / length) if length > 0 else 1.0


def _cosine(way: float) -> float:
    """From 1 at way 0 to 0 at way 1."""
    return (1 + math.cos(math.pi * way)) / 2


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights, and of BatchNorm's statistics with them.

    The decay climbs with the number t of updates, min(decay, (1 + t) / (10 + t)): a constant one would keep the initial
    statistics, mean 0 and variance 1, for several 1 / (1 - decay) batches beside weights that have long moved on.
    """

    def follow(averages: Any, values: Any, updates: Tensor | int) -> None:
        now = min(decay, (1 + float(updates)) / (10 + float(updates)))
        get_ema_multi_avg_fn(now)(averages, values, updates)

    return AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
