"""The attack of Carlini and Wagner for the l2 norm."""

import torch
from torch import Tensor, nn

from atent.attacks.descent import descend
from atent.attacks.protocol import named, nearest_within, only_norm, still_right
from atent.borrow import borrowed
from atent.fields import Count, Scale, Size, method
from atent.losses import margin
from atent.threat import Threat


@method
class CwL2:
    """CW-l2: the closest misclassified point, by gradient descent on distance and margin together.

        min_w |x' - x|^2 + c max(Z_y - max_{i != y} Z_i + confidence, 0),   x' = (tanh(w) + 1) / 2

    Z the logits; Adam, from x, for each of `searches` constants c, sought by bisection for each example.
    Carlini & Wagner 2017, https://arxiv.org/abs/1608.04644, section VI.A. Differs from the authors' code in:
    untargeted; by default 6 x 100 steps from c = 1, where theirs are 9 x 10,000 from .001; Adam's rate falls from .2 to
    0, theirs is .01, so that few steps go far and still end precisely, and no search is cut short; c is bisected on a
    logarithmic scale.
    """

    steps: Count = 100
    searches: Count = 6
    rate: Size = 0.2
    constant: Size = 1.0
    confidence: Scale = 0.0

    @property
    def label(self) -> str:
        return named("CW-l2", self)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        return nearest_within(self, model, x, y, threat, generator)

    def nearest(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        only_norm("l2", threat, "cw-l2")
        found = x.clone()
        with borrowed(model):
            left = still_right(model, x, y).nonzero().squeeze(1)
            low = torch.zeros(len(left), device=x.device)
            high, constant = torch.full_like(low, float("inf")), torch.full_like(low, self.constant)
            size = torch.full_like(low, float("inf"))
            for _ in range(self.searches):
                if len(left) == 0:
                    break
                point, reached = self._descend(model, x[left], y[left], constant, threat)
                closer = reached < size
                found[left[closer]], size[closer] = point[closer], reached[closer]
                success = reached.isfinite()
                low, high = torch.where(success, low, constant), torch.where(success, constant, high)
                # Constants of several orders occur, so the middle is the geometric one.
                constant = (low.clamp_min(1e-2 * constant) * high.clamp_max(1e2 * constant)).sqrt()
        return found

    def _descend(
        self, model: nn.Module, x: Tensor, y: Tensor, constant: Tensor, threat: Threat
    ) -> tuple[Tensor, Tensor]:
        """The closest misclassified point met with these constants, and its distance; infinite where there is none."""
        found, size = x.clone(), torch.full_like(constant, float("inf"))
        lead = distance = constant

        def objective(point: Tensor) -> Tensor:
            nonlocal lead, distance
            square, ahead = (point - x).square().flatten(1).sum(1), margin(model(point), y)
            lead, distance = ahead.detach(), square.detach().sqrt()
            return square + constant * (self.confidence - ahead).clamp_min(0)

        low, high = (torch.full_like(x, border) for border in threat.box)
        for point in descend(objective, x, low, high, steps=self.steps, rate=self.rate, edge=0.999, cool=True):
            closer = (lead > self.confidence) & (distance < size)
            found[closer], size[closer] = point[closer], distance[closer]
        return found, size
