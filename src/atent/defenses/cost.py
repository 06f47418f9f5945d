"""The cost of a defense, counted in a real training step."""

from itertools import chain

import torch
from torch import nn

from atent.defenses.protocols import Defense, in_two_parts, terms
from atent.network import Passes, counted
from atent.randomness import derive
from atent.threat import Threat


def passes_per_image(defense: Defense, threat: Threat | str, *, awp: bool = False) -> Passes:
    """The forward and backward passes per image of one training step, counted on a very small network.

    With `awp` the loss is evaluated twice at the points that the search finds, as AWP does.
    """
    count = 4
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(9, 3)).train()
    x, y = torch.rand(count, 1, 3, 3, generator=derive(0, "cost")), torch.arange(count) % 3
    batch, threat, generator = (model, x, y), Threat.parse(threat), derive(0, "cost")
    with counted(model) as passes:
        if awp:
            parts = in_two_parts(defense)
            found = parts.find(*batch, threat, generator)
            steps = [parts.loss_at(*batch, found) for _ in ("at w", "at w + v")]
        else:
            steps = [terms(defense, *batch, threat, generator)]
        for term in chain(*steps):
            term.loss.mean().backward()
    return Passes(passes.forward // count, passes.backward // count, passes.to_weights // count)
