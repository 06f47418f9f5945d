"""Optimizers by name: each a frozen dataclass that builds a torch optimizer."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from atent.methods import Count, Fraction, Scale, Size, method
from atent.optim.entropy_sgd import EntropySGD


class Optimizer(Protocol):
    """Builds a torch optimizer. The schedule multiplies its `lr`."""

    @property
    def lr(self) -> float: ...

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer: ...


@runtime_checkable
class Drawing(Protocol):
    """A torch optimizer that draws random numbers: `train_step` sets its generator to that of the batch."""

    generator: torch.Generator


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
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101)."""

    lr: Size = 1e-3
    weight_decay: Scale = 1e-2

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **dataclasses.asdict(self))


@method
class Entropy:
    """Entropy-SGD, `atent.EntropySGD`: Langevin steps on the weights, then a step to their average."""

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


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW, "entropy-sgd": Entropy}
