"""The attack of Carlini and Wagner for the l2 norm."""

import torch
from torch import Tensor, nn

from atent.attacks.deepfool import DeepFool
from atent.attacks.descent import descend
from atent.attacks.early_stopping import still_right
from atent.attacks.nearest import RecordedMargin, nearest_within, pull_back
from atent.attacks.protocols import named, only_norm
from atent.inputs import checked
from atent.losses import margin
from atent.methods import Count, Scale, Size, method
from atent.network import borrowed
from atent.progress import detail
from atent.threat import Threat, over_pixels


@method
class CwL2:
    """CW-l2: the closest misclassified point, by gradient descent on the sum of squared distance and margin.

        min_w |x' - x|^2 + c max(Z_y - max_{i != y} Z_i + confidence, 0),   x' = (tanh(w) + 1) / 2

    Z are the logits. Adam runs once for each of `searches` constants c, which are bisected for each example.
    Carlini & Wagner 2017, https://arxiv.org/abs/1608.04644, section VI.A. Differs from the authors' code in:
    untargeted; by default 6 x 100 steps from c = 1, theirs 9 x 10,000 from .001; Adam's learning rate falls from .5 to
    0, theirs is .01, so that few steps suffice; no search is stopped early; c is bisected on a logarithmic scale; the
    point of a search is moved towards x while it stays misclassified; after a success, the next search starts at the
    closest point so far, with half the learning rate; DeepFool's point is the first closest point.
    """

    steps: Count = 100
    searches: Count = 6
    rate: Size = 0.5
    constant: Size = 1.0
    confidence: Scale = 0.0

    @property
    def title(self) -> str:
        return named("CW-l2", self)

    __call__ = nearest_within

    def check(self, model: nn.Module, threat: Threat) -> None:  # noqa: ARG002
        only_norm("l2", threat, "cw-l2")

    def nearest(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        with checked(model, x, y, threat) as threat, borrowed(model):
            self.check(model, threat)
            found = x.clone()
            left = still_right(model, x, y).nonzero().squeeze(1)
            if len(left) == 0:
                return found
            x, y = x[left], y[left]
            # On a nearly linear network DeepFool's point is best: CW may follow the class that is second at x.
            point = DeepFool().nearest(model, x, y, threat, generator)
            size = self._sizes(model, x, y, point, threat)
            low, successes = torch.zeros_like(size), torch.zeros_like(size)
            high, constant = torch.full_like(size, float("inf")), torch.full_like(size, self.constant)
            for search in range(1, self.searches + 1):
                start = torch.where(over_pixels(successes > 0, x), point, x)
                rate = over_pixels(self.rate * 0.5**successes, x)
                tried, hit = self._descend(model, x, y, start, constant, rate, threat, search)
                tried[hit] = pull_back(model, x[hit], y[hit], tried[hit], self.confidence)
                reached = torch.where(hit, threat.size(tried - x), float("inf"))
                closer = reached < size
                point[closer], size[closer] = tried[closer], reached[closer]
                successes += hit
                low, high = torch.where(hit, low, constant), torch.where(hit, constant, high)
                # Constants differ by orders of magnitude, so the geometric mean is taken.
                constant = (low.clamp_min(1e-2 * constant) * high.clamp_max(1e2 * constant)).sqrt()
            found[left] = torch.where(over_pixels(size.isfinite(), x), point, x)
        return found

    @torch.no_grad()
    def _sizes(self, model: nn.Module, x: Tensor, y: Tensor, point: Tensor, threat: Threat) -> Tensor:
        """The distance of each point; infinite where it is not misclassified with enough confidence."""
        return torch.where(margin(model(point), y) > self.confidence, threat.size(point - x), float("inf"))

    def _descend(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        start: Tensor,
        constant: Tensor,
        rate: Tensor,
        threat: Threat,
        search: int,
    ) -> tuple[Tensor, Tensor]:
        """The closest misclassified point of each search with these constants, and for which examples there is one."""
        found, size = x.clone(), torch.full_like(constant, float("inf"))
        ahead = RecordedMargin(model, y)

        def square(point: Tensor) -> Tensor:
            return (point - x).square().flatten(1).sum(1)

        def objective(point: Tensor) -> Tensor:
            return square(point) + constant * (self.confidence - ahead(point)).clamp_min(0)

        low, high = (torch.full_like(x, border) for border in threat.box)
        points = descend(objective, start, low, high, steps=self.steps, rate=rate, edge=0.999, cool=True)
        for step, point in enumerate(points, 1):
            detail(f"search {search}/{self.searches}, step {step}/{self.steps}")
            distance = square(point).sqrt()
            closer = (ahead.value > self.confidence) & (distance < size)
            found[closer], size[closer] = point[closer], distance[closer]
        return found, size.isfinite()
