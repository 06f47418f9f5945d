"""A search with restarts that leaves out an example as soon as it is misclassified."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from atent.ascent import Objective, Points
from atent.inputs import checked
from atent.losses import Loss
from atent.network import answers, borrowed, repeat
from atent.progress import detail
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
    reports: bool = False,
) -> Tensor:
    """Repeat `search`, such as `ascend`, on the examples that are still classified correctly.

    An example is robust only if every restart fails. Examples that are misclassified from the start are returned
    unchanged. On a randomized network, where a single prediction proves little, every search runs to its last step.
    A search that `reports` its progress itself is not reported here.
    """
    with checked(model, x, y, threat) as threat, borrowed(model):
        check_count(generator, len(x))
        search = partial(search, threat=threat)
        x_adv = x.clone()
        logits = answers(model, x)
        steady = not repeat(model, x[:8], logits[:8]).random
        left = ((logits.argmax(1) == y) | (not steady)).nonzero().squeeze(1)
        for restart in range(1, restarts + 1):
            if len(left) == 0:
                break
            where = None if reports else f"restart {restart}/{restarts}, " if restarts > 1 else ""
            drawn = partial(search, generator=select(generator, left))
            x_adv[left], remaining = climb(model, x[left], y[left], threat, loss, drawn, where, stop_early=steady)
            left = left[remaining]
            if restart < restarts and len(left) > 0:  # the caller evaluates the last restart's points
                left = left[still_right(model, x_adv[left], y[left])]
    return x_adv


def climb(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    loss: Loss,
    search: Search,
    where: str | None,
    *,
    stop_early: bool,
) -> tuple[Tensor, Tensor]:
    """Search, and leave out each example at its first misclassified point, or where the search gives it up.

    Returns the points, and the examples left.

    The pass that gives the gradient at a point also classifies it, so no pass is added. A misclassified point counts
    if it lies inside the threat; a search that projects every step never leaves it.
    """
    x_adv = x.clone()
    left = torch.arange(len(x), device=x.device)
    objective = Watched(model, loss, y, x, torch.zeros_like(y, dtype=torch.bool))
    points = search(objective, x)
    for step, point in enumerate(points, 1):
        if where is not None:
            detail(f"{where}step {step}, {len(left)} images left")
        done, previous = objective.done, objective.point
        if stop_early and done.any() and (leaving := done & threat.contains(previous, x)).any():
            x_adv[left[leaving]], keep = previous[leaving], ~leaving
            left, x, objective.y = left[keep], x[keep], objective.y[keep]
            point = points.send(keep)
            if len(left) == 0:
                break
    x_adv[left] = threat.project(point, x)  # a chain may end outside
    return x_adv, left


@dataclass
class Watched:
    """The objective loss(f(x'), y). It keeps the x' of its last call, and which examples need no further one.

    Those are the examples misclassified there, and those that the search gives up.
    """

    model: nn.Module
    loss: Loss
    y: Tensor
    point: Tensor
    done: Tensor

    def __call__(self, point: Tensor, *also: Tensor) -> Tensor:
        logits = self.model(point)
        self.point, self.done = point.detach(), logits.detach().argmax(1) != self.y
        return self.loss(logits, self.y, *also)

    def give_up(self, examples: Tensor) -> None:
        """Leave these out from here on, though they are classified correctly."""
        self.done = self.done | examples


@torch.no_grad()
def still_right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which examples are classified correctly, shape (n,)."""
    right: Tensor = model(x).argmax(1) == y
    return right
