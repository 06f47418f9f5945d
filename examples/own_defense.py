"""A defense of your own, in a recipe: logit pairing. Command line: --set defense.name=own_defense:LogitPairing."""

import tempfile
from dataclasses import dataclass

import torch
from torch import nn

from atent import Term, cross_entropy, fit, load_recipe, open_target, worst_point


@dataclass(frozen=True)
class LogitPairing:
    """Cross-entropy at the worst point, plus the squared distance of its logits from those at x."""

    weight: float = 0.5
    steps: int = 3

    def __call__(self, model, x, y, threat, generator):
        x_adv = worst_point(model, x, y, threat, generator, steps=self.steps)
        logits = model(x_adv)
        distance = (logits - model(x)).square().mean(1)
        yield Term(cross_entropy(logits, y) + self.weight * distance, logits, x_adv)


if __name__ == "__main__":
    torch.manual_seed(0)
    changes = {"defense": {"name": "own_defense:LogitPairing", "weight": 0.2}, "threat": "linf:0.1", "epochs": 2}
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    with tempfile.TemporaryDirectory() as folder:
        fit(load_recipe("demo", changes), folder, model=network)
        target = open_target(folder, model=network)
    x, y = target.images.batch(slice(500))
    clean = (target.network(x).argmax(1) == y).float().mean().item()
    print(f"500 test images: clean {clean:.1%}")
