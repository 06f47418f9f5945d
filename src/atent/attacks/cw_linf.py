"""The attack of Carlini and Wagner for the linf norm."""

import torch
from torch import Tensor, nn

from atent.attacks.descent import descend
from atent.attacks.early_stopping import still_right
from atent.attacks.nearest import nearest_within
from atent.attacks.protocols import named, only_norm
from atent.inputs import checked
from atent.losses import margin
from atent.methods import Count, Fraction, Size, method
from atent.network import borrowed
from atent.progress import detail
from atent.threat import Threat, over_pixels


@method
class CwLinf:
    """CW-linf: the margin descended inside a cube around x that shrinks as long as misclassified points are found.

        min_w Z_y - max_{i != y} Z_i,   |x' - x|_inf <= tau,   x' = low + (high - low) (tanh(w) + 1) / 2

    Z the logits, [low, high] the cube of half-width tau cut by the pixel box; Adam, from the closest point found so
    far. tau is first the whole box, then bisected for each example between the largest cube that held nothing and the
    closest point found, until the two are within `precision` of each other.
    Carlini & Wagner 2017, https://arxiv.org/abs/1608.04644, section VI.C. Differs from the paper in: untargeted; the
    cube is kept by the change of variables, not by the penalty sum_i max(|x'_i - x_i| - tau, 0), so there is no
    constant to search for; tau is bisected, where theirs shrinks by .9 until the first failure.
    """

    steps: Count = 50
    searches: Count = 10
    rate: Size = 0.3
    precision: Fraction = 0.01

    @property
    def title(self) -> str:
        return named("CW-linf", self)

    __call__ = nearest_within

    def check(self, model: nn.Module, threat: Threat) -> None:  # noqa: ARG002
        only_norm("linf", threat, "cw-linf")

    def nearest(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        del generator  # nothing here is random
        with checked(model, x, y, threat) as threat, borrowed(model):
            self.check(model, threat)
            found = x.clone()
            left = still_right(model, x, y).nonzero().squeeze(1)
            failed = torch.zeros(len(x), device=x.device)
            reached = torch.full_like(failed, threat.box[1] - threat.box[0])
            tau = reached.clone()
            for search in range(1, self.searches + 1):
                if len(left) == 0:
                    break
                point, hit = self._descend(model, x[left], y[left], found[left], tau[left], threat, search)
                found[left[hit]], reached[left[hit]] = point[hit], threat.size(point - x[left])[hit]
                failed[left[~hit]] = tau[left[~hit]]
                tau = (failed + reached) / 2
                left = left[(reached - failed > self.precision * reached)[left]]
        return found

    def _descend(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, tau: Tensor, threat: Threat, search: int
    ) -> tuple[Tensor, Tensor]:
        """The first misclassified point met in each cube, and where there is one."""
        found, hit = x.clone(), torch.zeros_like(y, dtype=torch.bool)
        left = torch.arange(len(x), device=x.device)
        wrong = hit

        def objective(point: Tensor) -> Tensor:
            nonlocal wrong
            lead = margin(model(point), y)
            wrong = lead.detach() > 0
            return -lead

        half = over_pixels(tau, x)
        low, high = threat.clamp(x - half), threat.clamp(x + half)
        points = descend(objective, start, low, high, steps=self.steps, rate=self.rate, edge=0.9)
        for step, point in enumerate(points, 1):
            detail(f"search {search}/{self.searches}, step {step}/{self.steps}")
            if wrong.any():
                found[left[wrong]], hit[left[wrong]] = point[wrong], True
                left, y = left[~wrong], y[~wrong]
                points.send(~wrong)
                if len(left) == 0:
                    break
        return found, hit
