"""Random changes of training images that keep their class."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from atent.randomness import fill, uniform_like

Augmentation = Literal["none", "crop-flip", "shift", "affine"]


def augment_crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Random crop after zero padding and random horizontal flip, for a whole batch at once."""
    return _cropped(x, generator, padding, flip=True)


def augment_shift(x: Tensor, generator: torch.Generator, padding: int = 2) -> Tensor:
    """Random shift by whole pixels, zeros come in: for images whose mirror image has another class, as digits."""
    return _cropped(x, generator, padding, flip=False)


def augment_affine(x: Tensor, generator: torch.Generator) -> Tensor:
    """Random rotation by up to 10 degrees, scaling by up to 10 % and shift by up to 2 pixels, zeros come in."""
    count, _, height, width = x.shape
    drawn = 2 * uniform_like(x.new_empty(count, 4), generator) - 1
    angle, scale = math.radians(10) * drawn[:, 0], 1 + 0.1 * drawn[:, 1]
    right, down = 2 * drawn[:, 2], 2 * drawn[:, 3]
    # Where a pixel comes from: the inverse map. Coordinates run from -1 to 1, so they are scaled by half a side.
    cos, sin = angle.cos() / scale, angle.sin() / scale
    across = torch.stack([cos, -sin * height / width, (sin * down - cos * right) * 2 / width], dim=1)
    along = torch.stack([sin * width / height, cos, -(sin * right + cos * down) * 2 / height], dim=1)
    grid = functional.affine_grid(torch.stack([across, along], dim=1), list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, align_corners=False).clamp(0, 1)  # rounding may leave the box
    return moved.contiguous(memory_format=torch.channels_last)


def _cropped(x: Tensor, generator: torch.Generator, padding: int, *, flip: bool) -> Tensor:
    count, _, height, width = x.shape
    padded = functional.pad(x, (padding,) * 4)
    moves = torch.empty(2, count, 1, dtype=torch.int64, device=x.device)
    down, right = fill(moves, generator, lambda part, source: part.random_(0, 2 * padding + 1, generator=source), dim=1)
    columns = torch.arange(width, device=x.device).expand(count, width)
    if flip:
        flipped = uniform_like(x.new_empty(count, 1), generator) < 0.5
        columns = torch.where(flipped, columns.flip(1), columns)
    columns = columns + right
    rows = torch.arange(height, device=x.device) + down
    example = torch.arange(count, device=x.device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[example, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)


AUGMENTATIONS: dict[Augmentation, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop-flip": augment_crop_flip,
    "shift": augment_shift,
    "affine": augment_affine,
}
