"""Normal noise on images, and the mean prediction under it."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from atent.randomness import fill


def normal_noise(x: Tensor, draws: int, sigma: float, generator: torch.Generator) -> Tensor:
    """Noise of shape (draws, *x.shape)."""
    empty = torch.empty(draws, *x.shape, device=x.device, dtype=x.dtype)
    return fill(empty, generator, lambda part, source: part.normal_(0, sigma, generator=source), dim=1)


def noisy_copies(x: Tensor, noise: Tensor) -> Tensor:
    """x plus each draw of the noise, stacked: shape (draws * n, ...)."""
    copies = (x + noise).flatten(0, 1)
    return copies.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else copies


def log_mean(logits: Tensor, draws: int) -> Tensor:
    """The log of the class probabilities of `noisy_copies`, averaged over the draws: shape (n, classes)."""
    log_probabilities = functional.log_softmax(logits, 1).unflatten(0, (draws, -1))
    mean: Tensor = log_probabilities.logsumexp(0) - math.log(draws)
    return mean
