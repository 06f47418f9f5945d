"""The training step: a batch, the loss terms of the defense, one update of the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from atent.defenses import Defense, Remembering, Search, in_two_parts
from atent.defenses.protocols import Terms, checked_terms
from atent.errors import UserError
from atent.inputs import checked
from atent.losses import cross_entropy, soft_maximum
from atent.optim.optimizers import Drawing
from atent.optim.weight_perturbation import perturbed, statistics_kept
from atent.parallel.gradients import average_gradients, mean_of, weighed
from atent.parallel.team import current_team
from atent.randomness import common, images_of
from atent.threat import Threat


class NotFiniteError(ArithmeticError):
    """The loss or its gradient is not finite."""


class Step(NamedTuple):
    """Loss of a training step, cross-entropy of its first term, correct images and mean radius of its last term.

    The first term is at x if the defense has a term there (MMA): at a decision boundary cross-entropy stays near log 2.
    """

    loss: float
    cross_entropy: float
    right: int
    radius: float


def new_memory(defense: Defense, count: int, threat: Threat) -> Tensor | None:
    """What a defense keeps during a training of `count` examples: a number for each, or a pull that adapts."""
    if _adapts(defense):
        return torch.tensor([defense.first_pull(threat)], dtype=torch.float64)
    return defense.new_memory(count) if isinstance(defense, Remembering) else None


def adapt(defense: Defense, memory: Tensor | None, step: Step, threat: Threat) -> None:
    """Update a pull that adapts after a step."""
    if memory is not None and _adapts(defense):
        memory[0] = defense.next_pull(float(memory), step.radius, threat)


def _adapts(defense: Defense) -> TypeGuard[Search]:
    return isinstance(defense, Search) and defense.pull_rate > 0


@contextmanager
def with_memory(
    defense: Defense, memory: Tensor | None, indices: Tensor, device: torch.device | str, threat: Threat
) -> Iterator[Defense]:
    """The defense with its memory of a batch's examples bound to it; updates of the memory are stored afterwards.

    In a team, it has that of this process's part of the batch, and the updates of all processes are stored.
    """
    if memory is not None and _adapts(defense):
        yield defense.pulled(float(memory), threat)
        return
    if memory is None or not isinstance(defense, Remembering):
        yield defense
        return
    team = current_team()
    mine = memory[indices[team.part(len(indices))]].to(device)
    yield partial(defense, memory=mine)
    memory[indices] = team.join(mine.to(memory.device), len(indices))


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    threat: Threat | str,
    generator: torch.Generator,
    *,
    awp: float = 0.0,
    gibbs: float = 0.0,
) -> Step:
    """One step on one batch; each loss term is back-propagated when it is yielded, so only one graph is alive.

    An optimizer may ask for several gradients (Entropy-SGD); the defense then searches again for each. The random
    numbers of the optimizer also come from the generator. If the loss or its gradient is not finite, `NotFiniteError`
    is raised and the weights stay unchanged.

    In a team of processes, x and y are this process's part of a batch, and the generator is its `Share`. The gradient
    and the numbers that are returned are those of the whole batch.

    With `awp` the gradient is taken at weights moved by that share of their size to raise the loss at the same points
    (`perturbed`). With `gibbs` the examples of a batch are weighed by softmax(loss / gibbs) (`soft_maximum`).
    """
    threat = Threat.parse(threat)
    set_training(model)
    if isinstance(optimizer, Drawing):
        optimizer.generator = common(generator)
    total, first, term = 0.0, None, None  # of the last gradient

    def back_propagate(found: Terms) -> None:
        nonlocal total, first, term
        optimizer.zero_grad()
        total, first = 0.0, None
        for term in checked_terms(found, defense, x):
            if gibbs and first is not None:
                raise UserError(f"gibbs = {gibbs:g} weighs the examples of one loss term; the defense yields several")
            loss = weighed(soft_maximum(term.loss, gibbs) if gibbs else term.loss.mean(), generator, gibbs)
            loss.backward()
            total += float(loss.detach())
            first = term.logits.detach() if first is None else first
        total = average_gradients(model, total)

    def differentiate() -> float:
        if awp:
            parts = in_two_parts(defense)
            with checked(model, x, y, threat):
                points = parts.find(model, x, y, threat, generator)
            with statistics_kept(model):
                back_propagate(parts.loss_at(model, x, y, points))
            with perturbed(model, awp):
                back_propagate(parts.loss_at(model, x, y, points))
        else:
            back_propagate(defense(model, x, y, threat, generator))
        norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
        if not (math.isfinite(total) and torch.stack(norms).isfinite().all()):
            raise NotFiniteError
        return total

    optimizer.step(differentiate)
    assert first is not None
    assert term is not None
    means = [
        float(cross_entropy(first, y).mean()),
        int((term.logits.detach().argmax(1) == y).sum()) / len(y),
        float(threat.size(term.x_adv - x).mean()),
    ]
    ce, right, radius = mean_of(means, generator)
    return Step(total, ce, round(right * images_of(generator, len(y))), radius)


def set_training(model: nn.Module) -> None:
    """Set train mode, except in layers whose parameters are all frozen."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
