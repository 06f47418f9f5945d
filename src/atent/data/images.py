"""Labelled images, in memory or on disk: batches, shuffled or in order, and a held-out part."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from atent.data.decode import Files
from atent.errors import UserError
from atent.models import Shape
from atent.progress import progress

Split = Literal["train", "test"]
_CHUNK, _READERS = 1000, 4
_SAMPLE = 10_000  # images that give the mean and standard deviation to a hundredth of a standard deviation


@dataclass(frozen=True)
class Images:
    """`x`: (n, channels, height, width), bytes or floats in [0,1], or files; `y`: int64 (n,); the class names."""

    x: Tensor | Files
    y: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> Shape:
        channels, height, width = self.x.shape[1:]
        return Shape((channels, height, width), len(self.classes))

    @property
    def nbytes(self) -> int:
        """The bytes that the pixels take in memory (files: would take)."""
        return math.prod(self.x.shape) * self.x.dtype.itemsize

    @cached_property
    def constant_accuracy(self) -> float:
        """The share of the most frequent label: the accuracy of a network that always predicts this class."""
        return float(self.y.bincount().max()) / len(self) if len(self) else 0.0

    @cached_property
    def constant_loss(self) -> float:
        """The smallest cross-entropy of a constant prediction: the labels' entropy, log(classes) if balanced."""
        shares = self.y.bincount().double() / len(self)
        return float(-torch.xlogy(shares, shares).sum())

    @property
    def summary(self) -> str:
        """`2,400 images of 28 x 28 pixels, 1 channel: bag 800, coat 790, ...`, or `800 each of bag, coat, shirt`."""
        channels, height, width = self.shape.image
        counts = self.y.bincount(minlength=len(self.classes)).tolist()
        equal = len(set(counts)) == 1
        pairs = [f"{name} {count:,}" for name, count in zip(self.classes, counts, strict=True)]
        shown = list(self.classes) if equal else pairs
        classes = ", ".join(shown if len(shown) <= 12 else [*shown[:10], f"... {len(shown)} classes"])
        classes = f"{counts[0]:,} each of {classes}" if equal else classes
        plural = "channel" if channels == 1 else "channels"
        return f"{len(self):,} images of {height} x {width} pixels, {channels} {plural}: {classes}"

    def take(self, indices: Tensor | slice) -> "Images":
        """The images with these indices."""
        return Images(self.x[indices], self.y[indices], self.classes)

    def first(self, count: int | None) -> "Images":
        """The first `count` images; None: all."""
        if count is not None and not 1 <= count <= len(self):
            raise UserError(f"--examples {count}; allowed: 1 to {len(self)}")
        return self.take(slice(count))

    def named_for(self, classes: int) -> "Images":
        """The same images with a name for each of a network's classes; of some, there may be no image."""
        names = self.classes if len(self.classes) == classes else tuple(map(str, range(classes)))
        return Images(self.x, self.y, names)

    def batch(self, indices: Tensor | slice, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The pixels as floats in [0,1], channels last in memory (the faster layout), and the labels."""
        return self._finished(self.take(indices).pixels(), indices, device)

    def batches(
        self, order: Sequence[Tensor], device: torch.device | str = "cpu", workers: int = 2
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches with these indices, in this order; `workers` threads read files in advance."""
        if not isinstance(self.x, Files):
            for indices in order:
                yield self.batch(indices, device)
            return
        # The threads only decode: torch would start a thread pool in each of them.
        pool = ThreadPoolExecutor(workers)
        ahead: deque[tuple[Tensor, Future[Any]]] = deque()
        waiting = iter(order)
        try:
            while True:
                while len(ahead) <= workers and (some := next(waiting, None)) is not None:
                    ahead.append((some, pool.submit(self.x[some].read)))
                if not ahead:
                    return
                indices, pixels = ahead.popleft()
                yield self._finished(torch.from_numpy(pixels.result()), indices, device)
        finally:
            pool.shutdown(cancel_futures=True)

    def in_memory(self) -> "Images":
        """The same images with all files read into memory."""
        if not isinstance(self.x, Files):
            return self
        pixels = torch.empty(self.x.shape, dtype=self.x.dtype)
        parts = torch.arange(len(self)).split(_CHUNK) if len(self) else ()
        with progress("reading images", len(self), "images", brief=True) as show, ThreadPoolExecutor(_READERS) as pool:
            for part, found in zip(parts, pool.map(lambda part: self.take(part).pixels(), parts), strict=True):
                pixels[part] = found
                show(int(part[0]) + len(part))
        return Images(pixels, self.y, self.classes)

    def pixels(self) -> Tensor:
        """All pixels in their stored type."""
        return torch.from_numpy(self.x.read()) if isinstance(self.x, Files) else self.x

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, over fewer than 20,000 evenly spaced images."""
        chosen = torch.arange(0, len(self), max(1, len(self) // _SAMPLE))
        total, squares, count = torch.zeros(self.shape.image[0]).double(), torch.zeros(self.shape.image[0]).double(), 0
        for x, _ in self.batches(chosen.split(_CHUNK // 4)):  # in parts, to save memory with large images
            x = x.double()
            total, squares = total + x.sum((0, 2, 3)), squares + x.square().sum((0, 2, 3))
            count += x.numel() // x.shape[1]
        mean = total / count
        std = (squares / count - mean**2).clamp(min=0).sqrt().clamp(min=1 / 255)  # a channel may be constant
        return tuple(mean.tolist()), tuple(std.tolist())

    def _finished(self, x: Tensor, indices: Tensor | slice, device: torch.device | str) -> tuple[Tensor, Tensor]:
        x = x.to(device)
        x = x.to(torch.get_default_dtype()).div_(255) if x.dtype == torch.uint8 else x
        return x.to(memory_format=torch.channels_last), self.y[indices].to(device)


def held_out_of(images: int, count: float | Literal["auto"]) -> int:
    """How many of so many images to hold out: `count`, or this share of them if below 1.

    "auto" is 5,000, of fewer than 50,000 images a tenth, at least one.
    """
    asked: float = min(5000, max(1, images // 10)) if count == "auto" else count
    return math.floor(asked * images) if 0 < asked < 1 else int(asked)


def hold_out(images: Images, count: float | Literal["auto"], generator: torch.Generator) -> tuple[Images, Images]:
    """Hold out images (`held_out_of`), spread over the classes as evenly as possible; returns (training, held-out)."""
    whole = held_out_of(len(images), count)
    if not 0 <= whole < len(images):
        raise UserError(f"validation = {count} images to hold out; allowed: 0 to {len(images) - 1} of {len(images)}")
    order = torch.randperm(len(images), generator=generator)
    labels = images.y[order]
    # Rank of each image within its class: taking the lowest ranks first balances the classes.
    rank = torch.zeros_like(labels)
    for label in labels.unique():
        members = labels == label
        rank[members] = torch.arange(int(members.sum()))
    chosen = rank.argsort(stable=True)[:whole]
    held = torch.zeros(len(images), dtype=torch.bool)
    held[order[chosen]] = True
    return images.take(~held), images.take(held)


def epoch_batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffled indices in batches of `size`; a smaller last batch is kept unless it has a single image.

    (BatchNorm cannot be trained on one image.)
    """
    batches = list(torch.randperm(count, generator=generator).split(size))
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches


def evaluation_batches(count: int, size: int) -> Iterator[slice]:
    """The slices of batches of `size`, in order."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
