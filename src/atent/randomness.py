"""Every random number comes from a generator derived from (seed, purpose, ...), so no RNG state has to be stored."""

import hashlib
from collections.abc import Iterator, Sequence

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


def uniform_like(x: Tensor, source: Source, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers in the shape of x; with a generator per image, those of an image depend on its own alone."""
    drawn = torch.empty_like(x)
    for part, generator in _parts(drawn, source):
        part.uniform_(low, high, generator=generator)
    return drawn


def normal_like(x: Tensor, source: Source) -> Tensor:
    """Normal numbers in the shape of x, drawn as `uniform_like` draws."""
    drawn = torch.empty_like(x)
    for part, generator in _parts(drawn, source):
        part.normal_(generator=generator)
    return drawn


def _parts(drawn: Tensor, source: Source) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Each part of a tensor to fill, and the generator to fill it with."""
    return iter([(drawn, source)]) if isinstance(source, torch.Generator) else zip(drawn, source, strict=True)
