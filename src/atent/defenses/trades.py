"""TRADES: accuracy on x, and the same prediction around it."""

from dataclasses import KW_ONLY

import torch
from torch import Generator, Tensor, nn

from atent.defenses.protocols import Search, Term, Terms
from atent.losses import cross_entropy, divergence
from atent.methods import Scale, Size, Start, method
from atent.network import borrowed
from atent.threat import Threat


@method
class Trades(Search):
    """TRADES: cross-entropy on x plus a penalty for other predictions near x.

        loss = CE(f(x), y) + beta KL(p(x) || p(x')),   x' ascends that KL from near x, the network in eval mode

    Zhang et al. 2019, https://arxiv.org/abs/1901.08573; beta is their 1/lambda. Differs from the authors' code in: l2
    is steepest ascent as linf is, not a separate optimizer; one forward pass on x serves both terms of the loss
    (theirs runs two, with different dropout).
    """

    beta: Scale = 6.0
    _: KW_ONLY
    reach: Size = 2.0
    start: Start = "near"

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:  # noqa: ARG002
        with borrowed(model, self.mode == "train"), torch.no_grad():
            at_x = model(x)
        return self.climb(model, x, at_x, threat, generator, loss=divergence)

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:
        clean, adversarial = model(x), model(found)
        loss = cross_entropy(clean, y, self.label_smoothing) + self.beta * divergence(adversarial, of=clean)
        yield Term(loss, adversarial, found)
