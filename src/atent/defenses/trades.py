"""TRADES: accuracy on x, and the same prediction around it."""

from functools import partial

import torch
from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import cross_entropy, divergence
from atent.methods import Count, Scale, Size, Start, method
from atent.network import borrowed
from atent.threat import Threat


@method
class Trades:
    """TRADES: cross-entropy on x plus a penalty for other predictions near x.

        loss = CE(f(x), y) + beta KL(p(x) || p(x')),   x' ascends that KL from near x, the network in eval mode

    Zhang et al. 2019, https://arxiv.org/abs/1901.08573; beta is their 1/lambda. Differs from the authors' code in: l2
    is steepest ascent as linf is, not a separate optimizer; one forward pass on x serves both terms of the loss
    (theirs runs two, with different dropout).
    """

    beta: Scale = 6.0
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.0
    start: Start = "near"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        search = partial(worst_point, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
        with checked(model, x, y, threat) as threat:
            with borrowed(model), torch.no_grad():
                at_x = model(x)
            x_adv = search(model, x, at_x, threat, generator, loss=divergence)
            clean, adversarial = model(x), model(x_adv)
            yield Term(cross_entropy(clean, y) + self.beta * divergence(adversarial, of=clean), adversarial, x_adv)
