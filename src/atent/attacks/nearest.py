"""What attacks share that search for the nearest misclassified point."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from atent.attacks.protocols import MinimalAttack
from atent.losses import margin
from atent.threat import Threat, over_pixels


@dataclass
class RecordedMargin:
    """The margin of f(x') as a function of x'. `value` is the result of the last call, detached."""

    model: nn.Module
    y: Tensor
    value: Tensor = field(init=False)

    def __call__(self, point: Tensor) -> Tensor:
        found = margin(self.model(point), self.y)
        self.value = found.detach()
        return found


def nearest_within(
    attack: MinimalAttack, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
) -> Tensor:
    """The nearest misclassified point where it lies inside the threat, else x."""
    threat = Threat.parse(threat)
    found = attack.nearest(model, x, y, threat, generator)
    return torch.where(over_pixels(threat.contains(found, x), x), found, x)


@torch.no_grad()
def pull_back(model: nn.Module, x: Tensor, y: Tensor, found: Tensor, confidence: float = 0.0) -> Tensor:
    """Move misclassified points towards x while they stay misclassified, by ten bisections.

    Their margin stays above `confidence` and above rounding (1e-6 of the largest logit): in a batch of another size
    the logits of the same point may differ slightly.
    """
    if len(x) == 0:
        return found
    near, far = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)  # correct and misclassified
    for _ in range(10):
        middle = (near + far) / 2
        logits = model(x + over_pixels(middle, x) * (found - x))
        wrong = margin(logits, y) > confidence + 1e-6 * logits.abs().amax(1)
        near, far = torch.where(wrong, near, middle), torch.where(wrong, middle, far)
    return torch.where(over_pixels(far < 1, x), x + over_pixels(far, x) * (found - x), found)
