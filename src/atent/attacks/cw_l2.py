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
    untargeted; by default 6 x 100 steps of Adam's rate .1 from c = 1, where theirs are 9 x 10,000 of .01 from .001; c
    is bisected on a logarithmic scale.
    """

    steps: Count = 100
    searches: Count = 6
    rate: Size = 0.1
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
        left = torch.arange(len(x), device=x.device)
        loss = lead = distance = constant

        def objective(point: Tensor) -> Tensor:
            nonlocal loss, lead, distance
            square, ahead = (point - x).square().flatten(1).sum(1), margin(model(point), y)
            value = square + constant * (self.confidence - ahead).clamp_min(0)
            loss, lead, distance = value.detach(), ahead.detach(), square.detach().sqrt()
            return value

        low, high = (torch.full_like(x, border) for border in threat.box)
        points = descend(objective, x, low, high, steps=self.steps, rate=self.rate, edge=0.999)
        keep, least, before = None, size.clone(), size.clone()
        for k in range(1, self.steps + 1):
            point, keep = points.send(keep), None
            least = torch.minimum(least, loss)
            closer = (lead > self.confidence) & (distance < size[left])
            found[left[closer]], size[left[closer]] = point[closer], distance[closer]
            if k % max(1, self.steps // 10) == 0:  # ten checks whether the loss still falls
                keep, before = least < 0.9999 * before, least
                left, x, y, constant = left[keep], x[keep], y[keep], constant[keep]
                least, before = least[keep], before[keep]
                if len(left) == 0:
                    break
        return found, size
