"""Adam inside a box, through the change of variables of Carlini and Wagner."""

import torch
from torch import Tensor

from atent.ascent import Objective, Points


def descend(
    objective: Objective,
    point: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    steps: int,
    rate: float | Tensor,
    edge: float,
    cool: bool = False,
) -> Points:
    """Yield the points of a descent with Adam in w; the objective was evaluated last at the point that is yielded:

        x' = low + (high - low) (tanh(w) + 1) / 2

    Carlini & Wagner 2017, https://arxiv.org/abs/1608.04644, section V.B; Kingma & Ba 2015,
    https://arxiv.org/abs/1412.6980. A caller that needs some examples no longer sends the mask of those to keep, as
    in `ascend`. `rate` is the learning rate, one for all examples or one per example. Differs from the authors' code
    in: pixels start at most `edge` (theirs .999999) of the way to the border, where tanh is flat and Adam would need
    hundreds of steps; with `cool` the learning rate falls linearly to 0.
    """
    width = (high - low).clamp_min(1e-12)
    w = torch.atanh((2 * (point - low) / width - 1).clamp(-edge, edge))
    mean, square = torch.zeros_like(w), torch.zeros_like(w)
    for k in range(1, steps + 1):
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            point = low + width * (w.tanh() + 1) / 2
            gradient = torch.autograd.grad(objective(point).sum(), w)[0]
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        move = mean / (1 - 0.9**k) / ((square / (1 - 0.999**k)).sqrt() + 1e-8)
        w = w.detach() - rate * (1 - k / steps if cool else 1) * move
        keep = yield point.detach()
        while keep is not None:
            w, mean, square, low, width, point = (part[keep] for part in (w, mean, square, low, width, point))
            keep = yield point.detach()
