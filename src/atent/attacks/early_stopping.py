"""A search that leaves out an image as soon as it is broken, and its restarts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from atent.ascent import Objective, Points
from atent.attacks.protocols import within
from atent.inputs import checked
from atent.losses import Loss
from atent.network import answers, borrowed, repeat
from atent.randomness import Source, check_count, select
from atent.threat import Threat

Search = Callable[[Objective, Tensor], Points]


def until_broken(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str,
    generator: Source,
    search: Callable[..., Points],
    *,
    loss: Loss,
    restarts: int = 1,
) -> Tensor:
    """Repeat `search`, such as `ascend`, on the examples that are still right.

    An example is robust only if every restart fails.
    Examples that are wrong from the start come back as they are: an attack cannot repair them. On a random network,
    where a single answer says little, every example is attacked to the end of each path.
    """
    with checked(model, x, y, threat) as threat, borrowed(model):
        check_count(generator, len(x))
        search = partial(search, threat=threat)
        x_adv = x.clone()
        logits = answers(model, x)
        steady = not repeat(model, x[:8], logits[:8]).random
        left = ((logits.argmax(1) == y) | (not steady)).nonzero().squeeze(1)
        for restarts_after in reversed(range(restarts)):
            if len(left) == 0:
                break
            drawn = partial(search, generator=select(generator, left))
            x_adv[left], unbroken = climb(model, x[left], y[left], threat, loss, drawn, stop_early=steady)
            left = left[unbroken]
            if restarts_after and len(left) > 0:  # whoever called judges the very last points
                left = left[still_right(model, x_adv[left], y[left])]
    return x_adv


def climb(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, loss: Loss, search: Search, *, stop_early: bool
) -> tuple[Tensor, Tensor]:
    """Search, leaving out each example as soon as it is broken; its point, and which examples reached the end.

    The pass that gives the gradient at a point also says how the point is classified, so a broken one costs nothing
    to notice. It counts if it lies inside the threat, as all do on a path that is projected every step.
    """
    x_adv = x.clone()
    left = torch.arange(len(x), device=x.device)
    objective = _Watched(model, loss, y, x, torch.zeros_like(y, dtype=torch.bool))
    points = search(objective, x)
    for point in points:
        wrong, previous = objective.wrong, objective.point
        if stop_early and wrong.any() and (broken := wrong & within(threat, previous, x)).any():
            x_adv[left[broken]], keep = previous[broken], ~broken
            left, x, objective.y = left[keep], x[keep], objective.y[keep]
            point = points.send(keep)
            if len(left) == 0:
                break
    x_adv[left] = threat.project(point, x)  # a chain need not end inside
    return x_adv, left


@dataclass
class _Watched:
    """The objective loss(f(x'), y). It keeps the x' of its last call, and which examples were misclassified there."""

    model: nn.Module
    loss: Loss
    y: Tensor
    point: Tensor
    wrong: Tensor

    def __call__(self, point: Tensor, *also: Tensor) -> Tensor:
        logits = self.model(point)
        self.point, self.wrong = point.detach(), logits.detach().argmax(1) != self.y
        return self.loss(logits, self.y, *also)


@torch.no_grad()
def still_right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which examples are classified as they should be, shape (n,)."""
    right: Tensor = model(x).argmax(1) == y
    return right
