"""One gradient of all processes: the mean over the images of the whole batch, in one message per gradient."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atent.parallel.team import Team, current_team
from atent.randomness import Share


def weighed(loss: Tensor, generator: torch.Generator, gibbs: float = 0.0) -> Tensor:
    """The loss of this process's images with its weight, so that the mean over processes is that of the batch.

    With `gibbs` it is a soft maximum: its value is that of the whole batch, and the process's weight in the gradient is
    the share of its images in the softmax over all.
    """
    team = current_team()
    if team.size == 1:
        return loss
    weight = _weight(team, generator)
    if not gibbs:
        return loss * weight
    found = torch.zeros(team.size, dtype=torch.float64)
    found[team.rank] = float(loss.detach()) / gibbs + math.log(weight)
    scaled = team.add(found)
    value = gibbs * (float(scaled.logsumexp(0)) - math.log(team.size))
    moved = loss * (team.size * float(scaled.softmax(0)[team.rank]))
    return moved + (value - moved.detach())


def mean_of(values: Sequence[float], generator: torch.Generator) -> list[float]:
    """Means over this process's images become means over the whole batch."""
    team = current_team()
    if team.size == 1:
        return list(values)
    sums = team.add(torch.tensor(values, dtype=torch.float64) * _weight(team, generator))
    return (sums / team.size).tolist()


def _weight(team: Team, generator: torch.Generator) -> float:
    """The share of this process in the images of a batch, times the number of processes."""
    if not isinstance(generator, Share) or generator.count == generator.images:  # equal parts, or all have all images
        return 1.0
    return team.size * generator.count / generator.images


@torch.no_grad()
def average_gradients(model: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    """Give each parameter the mean of its gradients in all processes; returns the mean of the summed losses.

    BatchNorm's statistics are averaged in the same message, and every other buffer becomes that of the first process,
    so that all processes keep the same network. A gradient or loss that is not finite in one is so in all.
    """
    team = current_team()
    if team.size == 1:
        return losses
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moving = {id(buffer): buffer for buffer in _statistics(model)}
    fixed = [one for one in model.buffers() if one.is_floating_point() and id(one) not in moving]
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
    numbers = [*(float(one.grad is not None) for one in trained), float(sum(losses))]
    first = [one if team.leads else torch.zeros_like(one) for one in fixed]
    parts = [*gradients, *moving.values(), gradients[0].new_tensor(numbers), *first]
    message = team.add(torch.cat([part.reshape(-1) for part in parts]))
    message[: message.numel() - sum(one.numel() for one in fixed)] /= team.size
    found = iter(message.split([part.numel() for part in parts]))
    means = [next(found) for _ in trained]
    for buffer in moving.values():
        buffer.copy_(next(found).view_as(buffer))
    *used, mean_loss = next(found).tolist()
    for parameter, mean, is_used in zip(trained, means, used, strict=True):
        if is_used:
            parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad.copy_(mean.view_as(parameter))
    for buffer in fixed:
        buffer.copy_(next(found).view_as(buffer))
    return [losses[0].new_tensor(mean_loss)]


def _statistics(model: nn.Module) -> Iterator[Tensor]:
    """The running means and variances of BatchNorm layers that are in train mode."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None:
            assert module.running_var is not None
            yield from (module.running_mean, module.running_var)
