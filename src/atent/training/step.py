"""The training step: a batch, the defense's loss terms, one move of the weights."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atent.defenses import Defense, terms
from atent.losses import cross_entropy
from atent.optim.optimizers import Drawing
from atent.threat import Threat


class NotFiniteError(ArithmeticError):
    """The loss or its gradient is not finite."""


class Step(NamedTuple):
    """What a training step did: its loss, the first term's cross-entropy, the last one's right answers and mean radius.

    The first is at x where a defense has a term there (MMA): at the boundary it is log 2 however much was learned.
    """

    loss: float
    cross_entropy: float
    right: int
    radius: float


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    threat: Threat | str,
    generator: torch.Generator,
) -> Step:
    """One step on one batch; each loss term is back-propagated as it comes, so only one graph is alive.

    An optimizer that asks for several gradients (Entropy-SGD) gets them, the defense searching again each time; its own
    random numbers come from the generator, too. Where the loss or its gradient is not finite, `NotFiniteError` is
    raised and the weights are as before.
    """
    threat = Threat.parse(threat)
    set_training(model)
    if isinstance(optimizer, Drawing):
        optimizer.generator = generator
    total, first, term = 0.0, None, None  # of the gradient asked for last

    def differentiate() -> float:
        nonlocal total, first, term
        optimizer.zero_grad()
        total, first = 0.0, None
        for term in terms(defense, model, x, y, threat, generator):
            loss = term.loss.mean()
            loss.backward()
            total += float(loss.detach())
            first = term.logits.detach() if first is None else first
        norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
        if not (math.isfinite(total) and torch.stack(norms).isfinite().all()):
            raise NotFiniteError
        return total

    optimizer.step(differentiate)
    assert first is not None
    assert term is not None
    return Step(
        total,
        float(cross_entropy(first, y).mean()),
        int((term.logits.detach().argmax(1) == y).sum()),
        float(threat.size(term.x_adv - x).mean()),
    )


def set_training(model: nn.Module) -> None:
    """Train mode, but for layers all of whose parameters are frozen."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
