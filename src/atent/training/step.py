"""The training step: a batch, the loss terms of the defense, one update of the weights."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from atent.defenses import Defense, Remembering, Search, in_two_parts
from atent.defenses.protocols import Term, Terms, checked_terms
from atent.errors import UserError
from atent.inputs import checked, known
from atent.losses import cross_entropy, soft_maximum
from atent.optim.optimizers import Drawing
from atent.optim.weight_perturbation import perturbed, statistics_kept
from atent.parallel.gradients import average_gradients, mean_of, weighed
from atent.parallel.team import current_team
from atent.randomness import common, images_of
from atent.threat import Threat
from atent.training.loss_scale import LossScale, NotFiniteError


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
    scale: LossScale | None = None,
) -> Step:
    """One step on one batch; each loss term is back-propagated when it is yielded, so only one graph is alive.

    An optimizer may ask for several gradients (Entropy-SGD); the defense then searches again for each. The random
    numbers of the optimizer also come from the generator. If the loss or its gradient is not finite, `NotFiniteError`
    is raised and the weights stay unchanged. For each gradient numbers are read from the device once.

    In a team of processes, x and y are this process's part of a batch, and the generator is its `Share`. The gradient
    and the numbers that are returned are those of the whole batch.

    With `awp` the gradient is taken at weights moved by that share of their size to raise the loss at the same points
    (`perturbed`). With `gibbs` the examples of a batch are weighed by softmax(loss / gibbs) (`soft_maximum`). With a
    `scale` the loss is multiplied by it and the gradient divided; a gradient that is not finite is then computed again
    with a smaller scale.
    """
    threat = Threat.parse(threat)
    set_training(model)
    if isinstance(optimizer, Drawing):
        optimizer.generator = common(generator)
    step: Step | None = None  # of the last gradient

    def back_propagate(found: Terms) -> Callable[[], Step]:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        first = term = None
        for term in checked_terms(found, defense, x):
            if gibbs and losses:
                raise UserError(f"gibbs = {gibbs:g} weighs the examples of one loss term; the defense yields several")
            loss = weighed(soft_maximum(term.loss, gibbs) if gibbs else term.loss.mean(), generator, gibbs)
            (loss if scale is None else loss * scale.value).backward()
            losses.append(loss.detach())
            first = term if first is None else first
        assert first is not None
        assert term is not None
        return partial(_read, model, average_gradients(model, losses), first, term, x, y, threat, generator)

    def gradient() -> Step:
        with checked(model, x, y, threat), known(x):
            if awp:
                parts = in_two_parts(defense)
                points = parts.find(model, x, y, threat, generator)
                with statistics_kept(model):
                    read = back_propagate(parts.loss_at(model, x, y, points))
                if scale is not None:
                    read()  # weights must not be moved by a gradient that is not finite
                with perturbed(model, awp):
                    read = back_propagate(parts.loss_at(model, x, y, points))
            else:
                read = back_propagate(defense(model, x, y, threat, generator))
        if scale is not None:
            scale.divide(model)
        return read()

    def differentiate() -> float:
        nonlocal step
        step = gradient() if scale is None else scale.finite(model, gradient)
        return step.loss

    optimizer.step(differentiate)
    assert step is not None
    return step


def _read(
    model: nn.Module,
    losses: Sequence[Tensor],
    first: Term,
    last: Term,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    generator: torch.Generator,
) -> Step:
    """What a step reports, in one transfer from the device, with the norms that show whether its gradient is finite."""
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    reported = [
        cross_entropy(first.logits.detach(), y).mean(),
        (last.logits.detach().argmax(1) == y).sum(),
        threat.size(last.x_adv - x).mean(),
    ]
    kind = torch.promote_types(losses[0].dtype, torch.float32)
    numbers = torch.stack([value.to(kind) for value in (*losses, *reported, *norms)]).tolist()
    count = len(losses)
    total, (entropy, right, radius) = sum(numbers[:count]), numbers[count : count + 3]
    if not all(map(math.isfinite, (total, *numbers[count + 3 :]))):
        raise NotFiniteError
    entropy, right, radius = mean_of([entropy, right / len(y), radius], generator)
    return Step(total, entropy, round(right * images_of(generator, len(y))), radius)


def set_training(model: nn.Module) -> None:
    """Set train mode, except in layers whose parameters are all frozen."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
