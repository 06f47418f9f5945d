"""APGD: gradient ascent with momentum and a step size that adapts to each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from atent.ascent import Points
from atent.attacks.early_stopping import until_broken
from atent.attacks.protocols import attack_each, named
from atent.errors import UserError
from atent.inputs import checked
from atent.leak import leaky_gradients
from atent.losses import cross_entropy, dlr, targeted_dlr
from atent.methods import Count, Tolerance, method
from atent.network import answers, borrowed
from atent.progress import detail
from atent.randomness import Source, normal_like, uniform_like
from atent.threat import Threat, over_pixels

MOMENTUM = 0.75  # the share of the new step; the rest repeats the last move
RISES = 0.75  # of the steps between two checkpoints: fewer increases of the loss halve the step
SHORT = {"cross-entropy": "APGD-CE", "dlr": "APGD-DLR", "dlr-targeted": "APGD-T"}
LOSS: dict[str, Callable[..., Tensor]] = {"cross-entropy": cross_entropy, "dlr": dlr, "dlr-targeted": targeted_dlr}
CLASSES_NEEDED = {"cross-entropy": 2, "dlr": 3, "dlr-targeted": 4}


@method
class Apgd:
    """APGD: `steps` projected ascent steps with momentum, the step halved where the loss stops rising.

        z = P(x'_k + step d(grad loss)),   x'_{k+1} = P(x'_k + .75 (z - x'_k) + .25 (x'_k - x'_{k-1}))

    The step starts at 2 eps. At each checkpoint it is halved, and the path resumes from its best point, for images
    whose loss rose in at most .75 of the steps since the last checkpoint, or whose best loss and step are those of the
    last checkpoint. Checkpoints follow after .22, .19, .16, ... .06, .06 of the steps. Each of `restarts` starts on the
    sphere of radius eps. `dlr-targeted` runs once for each of the `targets` classes of largest clean logit after the
    true one. `leak` is the derivative of ReLU where it is off (`leaky_gradients`).

    Croce & Hein 2020, https://arxiv.org/abs/2003.01690, Algorithm 1. Differs from the paper as the authors' code does:
    "at most .75" where the paper has "less than"; the first increase is one over 0, not over the start's loss. Differs
    from the authors' code in: an image is done at its first misclassified point; where none is found, the point of
    highest loss is returned; directions of gradients below 1e-12 keep their length.
    """

    steps: Count = 100
    restarts: Count = 1
    loss: Literal["cross-entropy", "dlr", "dlr-targeted"] = "cross-entropy"
    targets: Count = 9
    leak: Tolerance = 0.0

    @property
    def title(self) -> str:
        return named(SHORT[self.loss], self, said=("loss",))

    __call__ = attack_each

    def each(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> Tensor:
        with checked(model, x, y, threat) as threat, borrowed(model), leaky_gradients(self.leak):
            runs = _Runs(self, model, self._targets(answers(model, x).shape[1]))
            restarts = runs.targets * self.restarts
            return until_broken(
                model, x, y, threat, generators, runs, loss=LOSS[self.loss], restarts=restarts, reports=True
            )

    def _targets(self, classes: int) -> int:
        """How many runs a restart has: one, or one for each target that there is."""
        needed = CLASSES_NEEDED[self.loss]
        if classes < needed:
            raise UserError(
                f"attack apgd, loss {self.loss!r}: the network has {classes} classes; allowed: {needed} or more"
            )
        return min(self.targets, classes - 1) if self.loss == "dlr-targeted" else 1


@dataclass
class _Runs:
    """The search of `until_broken`: each call is the next restart, or the next target's."""

    attack: Apgd
    model: nn.Module
    targets: int
    done: int = 0

    def __call__(self, objective: Callable[..., Tensor], x: Tensor, *, threat: Threat, generator: Source) -> Points:
        target, restart = divmod(self.done, self.attack.restarts)
        self.done += 1
        words = [SHORT[self.attack.loss]]
        words += [f"target {target + 1}/{self.targets}"] * (self.targets > 1)
        words += [f"restart {restart + 1}/{self.attack.restarts}"] * (self.attack.restarts > 1)
        label = ", ".join(words)
        labels = (self._aims(x, target),) if self.attack.loss == "dlr-targeted" else ()
        return ascend_adaptively(
            objective, x, threat, steps=self.attack.steps, generator=generator, aims=labels, label=label
        )

    def _aims(self, x: Tensor, rank: int) -> Tensor:
        """The class of each clean image's largest logit but `rank` + 1; the largest is the true class's."""
        return answers(self.model, x).argsort(dim=1, descending=True)[:, rank + 1]


def ascend_adaptively(
    objective: Callable[..., Tensor],
    x: Tensor,
    threat: Threat,
    *,
    steps: int,
    generator: Source,
    aims: tuple[Tensor, ...] = (),
    label: str = "APGD",
) -> Points:
    """Yield the points of one run of APGD, then the point of highest loss; a taker may send masks as to `ascend`.

    The objective is called with the point and the `aims`, one label per image. It is evaluated at the start and after
    each step.
    """
    if threat.eps == 0:
        yield x
        return
    windows = checkpoints(steps)
    path = _begin(x, start_on_sphere(x, threat, generator), threat.eps, aims)
    for k in range(steps + 1):
        path.evaluate(objective, count=k > 0)
        if k in windows:
            path.adapt(windows[k])
        if k < steps:
            path.move(threat, momentum=MOMENTUM if k > 0 else 1.0)
        else:
            path.point = path.best
        detail(f"{label}, step {k}/{steps}, {len(path.x)} images left")
        keep = yield path.point
        while keep is not None:
            path.keep(keep)
            keep = yield path.point


def start_on_sphere(x: Tensor, threat: Threat, generator: Source) -> Tensor:
    """x plus noise scaled to the norm eps, uniform in each pixel (linf) or normal (l2), cut by the pixel box."""
    noise = uniform_like(x, generator, -1, 1) if threat.norm == "linf" else normal_like(x, generator)
    return threat.clamp(x + noise * over_pixels(threat.radius / threat.size(noise), x))


def checkpoints(steps: int) -> dict[int, int]:
    """After which steps the step size may be halved, with the number of steps since the checkpoint before."""
    window, shrink, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    found, at = {}, window
    while at <= steps:
        found[at] = window
        window = max(window - shrink, least)
        at += window
    return found


@dataclass
class _Path:
    """Where the search of each image is; every member has one entry per image."""

    x: Tensor
    point: Tensor
    previous: Tensor
    gradient: Tensor
    step: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    best_loss_before: Tensor  # at the last checkpoint
    loss: Tensor
    rises: Tensor  # how often the loss rose since the last checkpoint
    halved: Tensor  # whether the step was halved there
    aims: Tensor

    def keep(self, mask: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[mask])

    def evaluate(self, objective: Callable[..., Tensor], *, count: bool) -> None:
        """Loss and gradient at the point; keep the best."""
        with torch.enable_grad():
            point = self.point.detach().requires_grad_()
            value = objective(point, *self.aims.unbind(1))
            (self.gradient,) = torch.autograd.grad(value.sum(), point)
        loss = value.detach()
        better = loss > self.best_loss
        pixels = over_pixels(better, self.x)
        self.best = torch.where(pixels, self.point, self.best)
        self.best_gradient = torch.where(pixels, self.gradient, self.best_gradient)
        self.best_loss = torch.where(better, loss, self.best_loss)
        if count:
            self.rises = self.rises + (loss > self.loss)
            self.loss = loss

    def adapt(self, window: int) -> None:
        """Halve the step and return to the best point where the last `window` steps were of little use."""
        unsteady = self.rises <= RISES * window
        stuck = ~self.halved & (self.best_loss_before >= self.best_loss)
        self.halved = unsteady | stuck
        self.best_loss_before, self.rises = self.best_loss, torch.zeros_like(self.rises)
        pixels = over_pixels(self.halved, self.x)
        self.step = torch.where(pixels, self.step / 2, self.step)
        self.point = torch.where(pixels, self.best, self.point)
        self.gradient = torch.where(pixels, self.best_gradient, self.gradient)

    def move(self, threat: Threat, momentum: float) -> None:
        goal = threat.project(self.point + self.step * threat.steepest(self.gradient), self.x)
        if momentum < 1:
            moved = self.point + momentum * (goal - self.point) + (1 - momentum) * (self.point - self.previous)
            goal = threat.project(moved, self.x)
        self.previous, self.point = self.point, goal


def _begin(x: Tensor, start: Tensor, eps: float, aims: tuple[Tensor, ...]) -> _Path:
    zero, none = torch.zeros(len(x), device=x.device, dtype=x.dtype), torch.zeros_like(x)
    nothing_yet = torch.full_like(zero, -torch.inf)
    return _Path(
        x=x,
        point=start,
        previous=start,
        gradient=none,
        step=over_pixels(zero + 2 * eps, x),
        best=start,
        best_gradient=none,
        best_loss=nothing_yet,
        best_loss_before=nothing_yet,
        loss=zero,
        rises=zero,
        halved=zero == 0,
        aims=torch.stack([*aims], 1) if aims else zero.new_zeros(len(x), 0, dtype=torch.int64),
    )
