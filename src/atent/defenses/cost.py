"""The cost of a defense, counted in a real training step."""

import torch
from torch import nn

from atent.defenses.protocols import Defense, terms
from atent.network import Passes, counted
from atent.randomness import derive
from atent.threat import Threat


def passes_per_image(defense: Defense, threat: Threat | str) -> Passes:
    """The forward and backward passes per image of one training step, counted on a very small network."""
    count = 4
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(9, 3)).train()
    x, y = torch.rand(count, 1, 3, 3, generator=derive(0, "cost")), torch.arange(count) % 3
    with counted(model) as passes:
        for term in terms(defense, model, x, y, Threat.parse(threat), derive(0, "cost")):
            term.loss.mean().backward()
    return Passes(passes.forward // count, passes.backward // count, passes.to_weights // count)
