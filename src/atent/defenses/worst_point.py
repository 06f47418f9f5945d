"""The point at which most defenses train: the last point of projected ascent."""

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor, nn

from atent.ascent import ascend, last
from atent.errors import unknown
from atent.inputs import checked
from atent.losses import Loss, cross_entropy
from atent.methods import Mode, Start
from atent.network import borrowed
from atent.threat import Threat


def worst_point(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str,
    generator: torch.Generator,
    *,
    loss: Loss = cross_entropy,
    steps: int = 10,
    step: float | None = None,
    reach: float = 2.5,
    start: Start = "uniform",
    mode: Mode = "eval",
    seen: Callable[[Tensor], Tensor] = lambda point: point,
) -> Tensor:
    """The last point of projected ascent on `loss(logits, y)`: the inner maximization of adversarial training.

    Every example takes all `steps`, whether it is misclassified or not; `step`, `reach` and `start` are those of
    `ascend`. y is what the loss compares the logits with: labels, or other logits for a divergence. During the search
    the network is in eval mode, or in `mode` "train". `seen` maps a point to the network's input, such as noisy copies.
    """
    if mode not in get_args(Mode):
        raise unknown("mode", mode, get_args(Mode))
    labels = isinstance(y, Tensor) and not y.is_floating_point()
    with checked(model, x, y if labels else None, threat) as threat, borrowed(model, mode == "train"):
        return last(
            ascend(
                lambda point: loss(model(seen(point)), y),
                x,
                threat,
                steps=steps,
                step=step,
                reach=reach,
                start=start,
                generator=generator,
            )
        )
