"""DeepFool: steps to the nearest decision boundary of the linearized network until it is crossed."""

import torch
from torch import Tensor, nn

from atent.attacks.early_stopping import still_right
from atent.attacks.nearest import nearest_within, pull_back
from atent.attacks.protocols import named
from atent.inputs import checked
from atent.methods import Count, Scale, method
from atent.network import borrowed
from atent.progress import detail
from atent.threat import Threat, over_pixels


@method
class DeepFool:
    """DeepFool: a step to the nearest decision boundary of the linearized network, repeated until x' is misclassified.

        r_{i+1} = r_i + (|f_k| / |grad f_k|_*) d(grad f_k),   x' = x + (1 + overshoot) r,   f_k = Z_k - Z_y

    k is the class with the least |f_k| / |grad f_k|_*, Z are the logits, d is the threat's steepest direction and |.|_*
    the dual of its norm. Moosavi-Dezfooli et al. 2016, https://arxiv.org/abs/1511.04599. Differs from the paper in:
    pixels stay in the box; only the `candidates` classes of largest logit are tried; at the end the point is moved
    towards x while it stays misclassified.
    """

    steps: Count = 50
    overshoot: Scale = 0.02
    candidates: Count = 10

    @property
    def title(self) -> str:
        return named("DeepFool", self)

    __call__ = nearest_within

    def nearest(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        del generator  # the attack is deterministic
        with checked(model, x, y, threat) as threat, borrowed(model):
            found = x.clone()
            left = still_right(model, x, y).nonzero().squeeze(1)
            point = x[left]
            for step in range(1, self.steps + 1):
                if len(left) == 0:
                    break
                detail(f"DeepFool step {step}/{self.steps}, {len(left)} images left")
                point = threat.clamp(point + self._to_boundary(model, point, y[left], threat))
                beyond = threat.clamp(x[left] + (1 + self.overshoot) * (point - x[left]))
                right = still_right(model, beyond, y[left])
                done = left[~right]
                found[done] = pull_back(model, x[done], y[done], beyond[~right])
                left, point = left[right], point[right]
        return found

    def _to_boundary(self, model: nn.Module, point: Tensor, y: Tensor, threat: Threat) -> Tensor:
        """The step to the nearest boundary of the network linearized at the point."""
        point = point.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(point)
            gaps = logits.gather(1, y[:, None]) - logits  # -f_k, positive
        others = logits.detach().scatter(1, y[:, None], float("-inf"))
        classes = others.topk(min(self.candidates, logits.shape[1] - 1), dim=1).indices
        least, move = torch.full_like(gaps[:, 0].detach(), float("inf")), torch.zeros_like(point)
        for rank in range(classes.shape[1]):
            gap = gaps.gather(1, classes[:, rank, None]).squeeze(1)
            slope = -torch.autograd.grad(gap.sum(), point, retain_graph=True)[0]
            direction = threat.steepest(slope)
            distance = gap.detach() / (slope * direction).flatten(1).sum(1).clamp_min(1e-12)
            closer = distance < least
            least = torch.where(closer, distance, least)
            move = torch.where(over_pixels(closer, point), direction, move)
        return over_pixels(least, point) * move
