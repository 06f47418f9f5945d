"""The attack of Carlini and Wagner for the linf norm."""

import torch
from torch import Tensor, nn

from atent.attacks.descent import descend
from atent.attacks.early_stopping import still_right
from atent.attacks.nearest import RecordedMargin, nearest_within
from atent.attacks.protocols import named, only_norm
from atent.inputs import checked
from atent.methods import Count, Fraction, Size, method
from atent.network import borrowed
from atent.progress import detail
from atent.threat import Threat, over_pixels


@method
class CwLinf:
    """CW-linf: gradient descent on the margin in a cube around x, which shrinks while misclassified points are found.

        min_w Z_y - max_{i != y} Z_i,   |x' - x|_inf <= tau,   x' = low + (high - low) (tanh(w) + 1) / 2

    Z are the logits, [low, high] is the cube of half-width tau cut by the pixel box. Adam starts at the closest point
    found so far. tau is first the width of the box. It is then bisected for each example between the largest cube in
    which the search failed and the closest point found, until the two differ by less than `precision`.
    Carlini & Wagner 2017, https://arxiv.org/abs/1608.04644, section VI.C. Differs from the paper in: untargeted; the
    change of variables keeps x' in the cube, not the penalty sum_i max(|x'_i - x_i| - tau, 0), so there is no constant
    to search for; tau is bisected, theirs shrinks by .9 until the first failure.
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
        del generator  # the attack is deterministic
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
        """The first misclassified point found in each cube, and for which examples there is one."""
        found, hit = x.clone(), torch.zeros_like(y, dtype=torch.bool)
        left = torch.arange(len(x), device=x.device)
        ahead = RecordedMargin(model, y)
        half = over_pixels(tau, x)
        low, high = threat.clamp(x - half), threat.clamp(x + half)
        points = descend(lambda point: -ahead(point), start, low, high, steps=self.steps, rate=self.rate, edge=0.9)
        for step, point in enumerate(points, 1):
            detail(f"search {search}/{self.searches}, step {step}/{self.steps}")
            wrong = ahead.value > 0
            if wrong.any():
                found[left[wrong]], hit[left[wrong]] = point[wrong], True
                left, ahead.y = left[~wrong], ahead.y[~wrong]
                points.send(~wrong)
                if len(left) == 0:
                    break
        return found, hit
