"""The cost of an attack, counted on a network that withstands it."""

import torch
from torch import Tensor, nn

from atent.attacks.protocols import Attack, MinimalAttack
from atent.network import Passes, counted
from atent.randomness import derive
from atent.smoothing.smoothed import Smoothed
from atent.threat import Threat

SIDE = 6  # pixels of an image of the small network


class _Confident(nn.Module):
    """Predicts class 0 with a margin that no point in the pixel box removes; its gradients are not zero."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE, classes)
        with torch.no_grad():
            self.layer.weight.copy_(1e-3 * torch.randn(self.layer.weight.shape, generator=derive(0, "cost")))
            self.layer.bias.copy_(10.0 * (torch.arange(classes) == 0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def passes_per_image(
    attack: Attack, threat: Threat, classes: int = 10, *, sigma: float = 0.0, draws: int = 1
) -> Passes:
    """The most passes that the attack needs for an image: it withstands all of it, so nothing stops early.

    With `sigma` the attacked network is smoothed with `draws` noisy copies, and the passes inside are counted.
    """
    inside = _Confident(classes).requires_grad_(False)
    model = Smoothed(inside, sigma, draws) if sigma else inside
    x, y = torch.rand(1, 1, SIDE, SIDE, generator=derive(0, "cost")), torch.zeros(1, dtype=torch.int64)
    search = attack.nearest if isinstance(attack, MinimalAttack) else attack
    with counted(inside) as passes:
        search(model, x, y, threat, derive(0, "cost"))
    return passes
