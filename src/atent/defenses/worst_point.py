"""The point at which most defenses train: the last point of projected ascent."""

from collections.abc import Callable
from typing import Unpack, get_args

import torch
from torch import Tensor, nn

from atent.ascent import Chain, ascend, last
from atent.errors import unknown
from atent.inputs import checked
from atent.leak import leaky_gradients
from atent.losses import Loss, cross_entropy
from atent.methods import Mode, readable
from atent.network import borrowed
from atent.threat import Threat


@readable
def worst_point(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str,
    generator: torch.Generator,
    *,
    loss: Loss = cross_entropy,
    steps: int = 10,
    mode: Mode = "eval",
    leak: float = 0.0,
    seen: Callable[[Tensor], Tensor] = lambda point: point,
    **chain: Unpack[Chain],
) -> Tensor:
    """The last point of `ascend` on `loss(logits, y)`: the inner maximization of adversarial training.

    Every example takes all `steps`, whether it is misclassified or not. `chain` has the other settings of `ascend`; by
    default it is projected ascent from a random start. y is what the loss compares the logits with: labels, or other
    logits for a divergence. During the search the network is in eval mode, or in `mode` "train", and its gradients are
    those of `leaky_gradients(leak)`. `seen` maps a point to the network's input, such as noisy copies.
    """
    if mode not in get_args(Mode):
        raise unknown("mode", mode, get_args(Mode))
    labels = isinstance(y, Tensor) and not y.is_floating_point()
    with checked(model, x, y if labels else None, threat) as threat, borrowed(model, mode == "train"):
        points = ascend(lambda point: loss(model(seen(point)), y), x, threat, steps=steps, generator=generator, **chain)
        with leaky_gradients(leak):
            return last(points)
