"""Every random number comes from a generator derived from (seed, purpose, ...), so no RNG state has to be stored."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atent.errors import UserError

Source = torch.Generator | Sequence[torch.Generator]  # one for a batch, or one per image


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on every part, e.g. `derive_seed(0, "chain", epoch, batch)`.

    torch's CPU generator uses only the low 32 bits (CUDA's uses all). On the CPU two given purposes therefore share a
    stream with probability 2^-32, and among n purposes about n^2 / 2^33 pairs do. This is harmless: two batches or two
    images that draw the same noise each get the result that they would get alone. A certificate of an image relies on
    the randomness of that image's draws only, and nothing here needs all pairs of purposes to be independent.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derive(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` with its own stream for this purpose."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))


def branch(generator: torch.Generator, *purpose: str | int) -> torch.Generator:
    """A generator with a stream for this purpose, derived from the seed of the given one, whatever that has drawn."""
    return derive(generator.initial_seed(), *purpose, device=generator.device)


def spawn(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """So many generators, each with a stream of its own, seeded by draws of the given one."""
    seeds = torch.randint(2**63 - 1, (count,), generator=generator, device=generator.device).tolist()
    return [torch.Generator(generator.device).manual_seed(seed) for seed in seeds]


def select(source: Source, index: Tensor) -> Source:
    """The generators of the images at these positions; a generator of the whole batch stays as it is."""
    return source if isinstance(source, torch.Generator) else [source[k] for k in index.tolist()]


def check_count(source: Source, images: int) -> None:
    """Refuse another number of generators than of images."""
    if not isinstance(source, torch.Generator) and len(source) != images:
        raise UserError(f"{len(source)} generators for {images} images; allowed: one per image")


class Share(torch.Generator):
    """The random numbers of `count` images from `first` on, of a batch of `images` that several processes share.

    `whole` has the stream of the batch, the same in every process. `fill` draws from it for all images and keeps the
    numbers of these, so each image has those that it would have in one process. What draws from the share itself, such
    as a method of a user, uses a stream that each process has for its own.
    """

    whole: torch.Generator
    images: int
    first: int
    count: int

    @classmethod
    def of(cls, whole: torch.Generator, rank: int, images: int, part: slice) -> "Share":
        """The share of the process `rank` in the draws of this generator: the images in `part`."""
        share = cls(whole.device)
        share.manual_seed(derive_seed(whole.initial_seed(), "process", rank))
        share.whole, share.images = whole, images
        share.first, share.count = part.start, part.stop - part.start
        return share


def common(generator: torch.Generator) -> torch.Generator:
    """The generator whose stream is the same in every process: for numbers that do not belong to images."""
    return generator.whole if isinstance(generator, Share) else generator


def images_of(generator: torch.Generator, mine: int) -> int:
    """The number of images in the whole batch, `mine` if no other process has a share in it."""
    return generator.images if isinstance(generator, Share) else mine


Draw = Callable[[Tensor, torch.Generator], Tensor]


def fill(into: Tensor, source: Source, draw: Draw, dim: int = 0) -> Tensor:
    """The tensor filled by `draw(tensor, generator)`; its images lie along `dim`.

    With a generator per image, the numbers of an image depend on its own alone. With a `Share` they are the part of a
    tensor that is filled for the whole batch; if these are not the images of the share, the numbers are its own.
    """
    if isinstance(source, Share) and into.shape[dim] == source.count:
        shape = (*into.shape[:dim], source.images, *into.shape[dim + 1 :])
        last = into.dim() == 4 and into.is_contiguous(memory_format=torch.channels_last)
        order = torch.channels_last if last else torch.contiguous_format  # numbers are drawn in the order of memory
        whole = torch.empty(shape, dtype=into.dtype, device=into.device, memory_format=order)
        return draw(whole, source.whole).narrow(dim, source.first, source.count)
    if isinstance(source, torch.Generator):
        return draw(into, source)
    for part, generator in zip(into, source, strict=True):
        draw(part, generator)
    return into


def uniform_like(x: Tensor, source: Source, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers in the shape of x, drawn as `fill` draws."""
    return fill(torch.empty_like(x), source, lambda part, generator: part.uniform_(low, high, generator=generator))


def normal_like(x: Tensor, source: Source) -> Tensor:
    """Normal numbers in the shape of x, drawn as `fill` draws."""
    return fill(torch.empty_like(x), source, lambda part, generator: part.normal_(generator=generator))
