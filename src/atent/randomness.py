"""Every random number comes from a generator derived from (seed, purpose, ...): nothing to store, nothing to lose."""

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on every part, e.g. `derive_seed(0, "chain", epoch, batch)`.

    torch's CPU generator takes the low 32 bits of it (CUDA's takes all), so that there two given purposes share a
    stream with probability 2^-32, and among n purposes about n^2 / 2^33 pairs do. That is harmless: two batches or two
    images that happen to draw the same noise are each treated as they would be alone. A certificate holds for each
    image by the randomness of its own draws, and nothing here needs all pairs of purposes to be independent.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derive(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` with its own stream for this purpose."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))
