"""Every random number comes from a generator derived from (seed, purpose, ...): nothing to store, nothing to lose."""

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on every part, e.g. `derive_seed(0, "chain", epoch, batch)`."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derive(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` with its own stream for this purpose."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))
