"""The training step: a batch, the defense's loss terms, one move of the weights."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atent.defenses import Defense
from atent.errors import UserError
from atent.losses import cross_entropy
from atent.threat import Threat
from atent.weights import set_training


class NotFiniteError(ArithmeticError):
    """The loss or its gradient is not finite."""


class Step(NamedTuple):
    """What a training step did: its loss, and at the last term's points cross-entropy, right answers, mean radius."""

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
    threat: Threat,
    generator: torch.Generator,
) -> Step:
    """One step on one batch; each loss term is back-propagated as it comes, so only one graph is alive.

    An optimizer that asks for several gradients (Entropy-SGD) gets them, the defense searching anew each time. Where
    the loss or its gradient is not finite, `NotFiniteError` is raised and the weights are as before.
    """
    set_training(model)
    total, term = 0.0, None  # of the gradient asked for last

    def differentiate() -> float:
        nonlocal total, term
        optimizer.zero_grad()
        total = 0.0
        for term in defense(model, x, y, threat, generator):
            loss = term.loss.mean()
            loss.backward()
            total += float(loss.detach())
        if term is None:
            raise UserError(f"the defense {defense} yielded no loss term")
        norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
        if not (math.isfinite(total) and torch.stack(norms).isfinite().all()):
            raise NotFiniteError
        return total

    optimizer.step(differentiate)
    assert term is not None
    logits = term.logits.detach()
    return Step(
        total,
        float(cross_entropy(logits, y).mean()),
        int((logits.argmax(1) == y).sum()),
        float(threat.size(term.x_adv - x).mean()),
    )
