"""Every random number comes from a generator derived from (seed, purpose, ...), so no RNG state has to be stored."""

import hashlib

import torch


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
