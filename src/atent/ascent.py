"""The inner loop, written once: ascent on a per-example objective near x. Attacks and defenses here use it.

No noise and no pull: projected gradient ascent (PGD). Noise and pull: ATENT's Langevin chain. Another objective:
another method.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypedDict, TypeVar, get_args

import torch
from torch import Tensor

from atent.errors import UserError, unknown
from atent.inputs import check_images
from atent.methods import Direction, Projection, Pull, Start, readable
from atent.randomness import Source, normal_like
from atent.threat import Threat, over_pixels

Objective = Callable[[Tensor], Tensor]
Points = Generator[Tensor, Tensor | None, None]
Radius = TypeVar("Radius", float, float | Tensor)


class Chain(TypedDict, total=False):
    """The optional settings of `ascend`."""

    step: float | None
    reach: float
    decay: float
    start: Start
    start_scale: float
    noise: float
    temperature: float
    pull: Pull
    direction: Direction
    project: Projection


@readable
def ascend(
    objective: Objective,
    x: Tensor,
    threat: Threat | str,
    *,
    steps: int,
    step: float | None = None,
    reach: float = 2.5,
    decay: float = 1.0,
    start: Start = "uniform",
    start_scale: float = 1.0,
    noise: float = 0.0,
    temperature: float = 0.0,
    pull: Pull = 0.0,
    direction: Direction = "steepest",
    project: Projection = "every",
    generator: Source,
) -> Points:
    """Yield the points x'_1 .. x'_K of the chain (K = `steps`), each detached:

        x'_{k+1} = clamp(x'_k + step (d(g_k) + pull (x - x'_k)) + sqrt(2 step) noise N(0, I)),   g_k = grad objective

    d is the threat's steepest direction, or the raw gradient. Without a `step`, step = reach * eps / steps. With a
    `decay` below 1 this is the mean step: steps shrink by a constant factor, and the last is `decay` times the first.
    The start is drawn in a ball of `start_scale` radii. Instead of `noise`, a `temperature` sets the deviation of the
    normal noise (see `noise_std`): compared with the step, or with the raw gradient that of the Gibbs law.
    The clamp is to the pixel box; the total displacement x' - x is projected to the ball at the last step, at every
    step, or never. Points of a chain that is not projected may leave the ball; an eps of 0 yields x.

    A caller that evaluates the objective at a yielded point and back-propagates has computed the gradient that the
    chain needs next. It leaves it in `point.grad` (see `keep_own_gradient`), and the chain runs no second pass.

    A caller that needs some examples no longer sends the mask of those to keep, and the batch shrinks to them: `send`
    returns their part of the same point, and the loop continues with them. The objective must then expect the smaller
    batch.
    """
    if steps < 1:
        raise UserError(f"steps {steps}; allowed: 1 or more")
    for name, value, allowed in (("project", project, Projection), ("direction", direction, Direction)):
        if value not in get_args(allowed):
            raise unknown(name, value, get_args(allowed))
    threat = check_images(x, threat)
    sizes = [part * step_size(threat.radius, steps, step, reach) for part in step_parts(steps, decay)]
    spreads = [noise_std(threat, size, x[0].numel(), noise, temperature, direction) for size in sizes]
    pulled = solved_pull(pull, threat, steps, step, reach)
    point = threat.scaled(start_scale).sample(x, generator, start)
    for k, (size, spread) in enumerate(zip(sizes, spreads, strict=True), start=1):
        if threat.eps > 0:
            gradient = input_gradient(objective, point) if point.grad is None else point.grad
            move = threat.steepest(gradient) if direction == "steepest" else gradient
            previous = point.detach()
            point = previous + size * move  # in this order: the sum has the memory layout of the point
            if pulled:
                point += (size * pulled) * (x - previous)
            if noise or temperature:
                point += spread * normal_like(x, generator)
            inside = project == "every" or (project == "last" and k == steps)
            point = threat.project(point, x) if inside else threat.clamp(point)
        keep = yield point
        while keep is not None:
            x, point = x[keep], point.detach()[keep]
            keep = yield point


def last(points: Iterator[Tensor]) -> Tensor:
    """The last point of a chain."""
    return deque(points, maxlen=1).pop()


def input_gradient(objective: Objective, point: Tensor) -> Tensor:
    """The gradient of the summed objective at each example: independent of the batch size."""
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        return torch.autograd.grad(objective(point).sum(), point)[0]


def keep_own_gradient(point: Tensor, loss: Tensor) -> None:
    """Make a later backward pass leave in `point.grad` the gradient of the summed `loss`, shape (n,).

    Whatever the pass multiplies the loss with (a share, the mean's 1/n, a loss scaler) arrives at `loss` and is
    divided out again at the point.
    """
    factor: list[Tensor] = []
    loss.register_hook(factor.append)
    point.register_hook(lambda gradient: gradient / over_pixels(factor[0], point))


def step_size(radius: Radius, steps: int, step: float | None, reach: float) -> Radius | float:
    """The given step, or the one with which `steps` steps have a total length of `reach` radii."""
    return reach * radius / steps if step is None else step


def step_parts(steps: int, decay: float) -> list[float]:
    """The steps as multiples of their mean: equal, or shrinking by a factor, the last `decay` times the first."""
    if not 0 < decay <= 1:
        raise UserError(f"decay {decay:g}; allowed: above 0, at most 1")
    if decay == 1 or steps == 1:
        return [1.0] * steps
    parts = [decay ** (k / (steps - 1)) for k in range(steps)]
    return [part * steps / sum(parts) for part in parts]


def noise_std(
    threat: Threat, step: Radius | float, dimension: int, noise: float, temperature: float, direction: Direction
) -> Radius | float:
    """The standard deviation of the noise that a step adds to a pixel, of its `noise` or its `temperature` T:

    noise: sqrt(2 step) noise. T, steepest: T step in linf, T step / sqrt(d) in l2, so that the noise is about T times
    as long as the step. T, raw: sqrt(2 step T), with which the chain samples exp((L - pull/2 |x' - x|^2) / T).
    """
    if noise and temperature:
        raise UserError(f"noise {noise:g} and temperature {temperature:g}; allowed: one of them, the other 0")
    std: Radius | float = (2 * step) ** 0.5 * noise
    if temperature and direction == "raw":
        std = (2 * step * temperature) ** 0.5
    elif temperature:
        std = temperature * step / (1.0 if threat.norm == "linf" else math.sqrt(dimension))
    return std


def radius_after(pull: float, steps: int, step: float) -> float:
    """The distance from x after K steps in one direction with this pull, without noise and box:

    (1 - (1 - step pull)^K) / pull
    """
    return steps * step if pull == 0 else (1 - (1 - step * pull) ** steps) / pull


def noise_for(std: float, pull: float, steps: int, step: float) -> float:
    """The noise that K steps accumulate to this deviation: std^2 = 2 step noise^2 sum_k (1 - step pull)^(2k), k < K."""
    kept = (1 - step * pull) ** 2
    return std / math.sqrt(2 * step * sum(kept**k for k in range(steps))) if step > 0 else 0.0


def solved_pull(pull: Pull, threat: Threat, steps: int, step: float | None, reach: float) -> float:
    """The given pull, or for "auto" the one that this threat needs; a UserError if there is none."""
    return auto_pull(threat.eps, steps, step_size(threat.eps, steps, step, reach)) if pull == "auto" else pull


def auto_pull(eps: float, steps: int, step: float) -> float:
    """The pull with which a chain of constant direction ends at radius eps; it exists if step <= eps <= K step."""
    if eps == 0:
        return 0.0
    if not step * (1 - 1e-9) <= eps <= steps * step * (1 + 1e-9):
        raise UserError(
            f"pull 'auto' needs step <= eps <= steps * step, but step = {step:.6g}, eps = {eps:.6g}, steps * step = "
            f"{steps * step:.6g}; change step or steps, or leave step out and set reach between 1 and steps"
        )
    low, high = 0.0, 1 / step  # the radius falls from K step to step between these two
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if radius_after(middle, steps, step) > eps else (low, middle)
    return (low + high) / 2
