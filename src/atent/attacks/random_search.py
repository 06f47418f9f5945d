"""A search without gradients: random squares, accepted where the margin grows."""

import math

import torch
from torch import Tensor, nn

from atent.losses import margin
from atent.randomness import derive
from atent.threat import Threat

QUERIES = 300


@torch.no_grad()
def search_blindly(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, among: Tensor, seed: int) -> Tensor:
    """Which images are still classified correctly after random changes of squares, accepted where the margin grows.

    Only the images in the mask `among` are tried. A simple form of Square: Andriushchenko et al. 2020,
    https://arxiv.org/abs/1912.00049.
    """
    left = among.clone()
    generator = derive(seed, "search", device=x.device)
    point = threat.sample(x, generator, "corner")
    value = torch.full((len(point),), -math.inf, device=point.device)
    for query in range(QUERIES):
        k = left.nonzero()[:, 0]
        if len(k) == 0:
            break
        near, tried = x[k], point[k]
        if query > 0:
            tried = threat.project(tried + _squares(near, threat, query, generator), near)
        found = margin(model(tried), y[k])
        better = found > value[k]
        point[k[better]], value[k[better]] = tried[better], found[better]
        left[k[found > 0]] = False
    return left


def _squares(x: Tensor, threat: Threat, query: int, generator: torch.Generator) -> Tensor:
    """A square at a random place of each image, each channel up or down by as much as the threat allows.

    It covers a share of the image that falls from .5 with the number of queries.
    """
    count, channels, height, width = x.shape
    side = max(1, round(math.sqrt(0.5 * height * width / (1 + query / 10))))
    side = min(side, height, width)
    corner = torch.rand(2, count, 1, 1, 1, generator=generator, device=x.device)
    rows = torch.arange(height, device=x.device).view(1, 1, -1, 1) - (corner[0] * (height - side + 1)).floor()
    columns = torch.arange(width, device=x.device).view(1, 1, 1, -1) - (corner[1] * (width - side + 1)).floor()
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    signs = torch.rand(count, channels, 1, 1, generator=generator, device=x.device).sub(0.5).sign()
    strength = 2 * threat.eps if threat.norm == "linf" else threat.eps / (side * math.sqrt(channels))
    return strength * signs * inside
