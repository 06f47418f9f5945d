"""The point that most defenses train at: where projected ascent ends."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from atent.ascent import ascend, last
from atent.borrow import borrowed
from atent.fields import Start
from atent.threat import Threat


class Search(Protocol):
    """The fields of a defense that say how its point is sought."""

    @property
    def steps(self) -> int: ...
    @property
    def step(self) -> float | None: ...
    @property
    def reach(self) -> float: ...
    @property
    def start(self) -> Start: ...


def worst_point(
    search: Search,
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    threat: Threat,
    generator: torch.Generator,
    training: bool = False,
    seen: Callable[[Tensor], Tensor] = lambda point: point,
) -> Tensor:
    """Where ascent on `loss(logits)` ends; the network is in eval mode meanwhile, or in train mode if wanted.

    What the network sees of a point may be something else: noisy copies of it.
    """
    with borrowed(model, training):
        return last(
            ascend(
                lambda point: loss(model(seen(point))),
                x,
                threat,
                steps=search.steps,
                step=search.step,
                reach=search.reach,
                start=search.start,
                generator=generator,
            )
        )
