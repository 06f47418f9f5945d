import pytest
import torch

from atent.randomness import derive, derive_seed


def test_a_stream_depends_on_every_part_and_on_nothing_else() -> None:
    def draw(*parts: int | str) -> list[float]:
        return torch.rand(4, generator=derive(0, *parts)).tolist()

    assert draw("chain", 1, 2) == draw("chain", 1, 2)
    assert (
        len({tuple(draw(*parts)) for parts in [("chain", 1, 2), ("chain", 2, 1), ("data", 1, 2), ("chain", 12)]}) == 4
    )


@pytest.mark.parametrize("seed", [5, derive_seed(0, "chain")])
def test_a_cpu_generator_takes_the_low_32_bits_of_a_seed(seed: int) -> None:
    """Fact about torch that the docstring of `derive_seed` rests on."""

    def draw(seed: int) -> list[float]:
        return torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist()

    assert draw(seed) == draw(seed % 2**32) == draw(seed % 2**32 + 2**32)
    assert draw(seed) != draw(seed ^ 2**31)


def test_low_bits_of_derived_seeds_are_as_distinct_as_chance_allows() -> None:
    """Of 10^5 draws from 2^32 about 10^10 / 2^33 = 1.2 pairs are equal; more than ten have a chance below 10^-6."""
    count = 100_000
    seeds = [derive_seed(0, "chain", number // 1000, number % 1000) for number in range(count)]
    assert len(set(seeds)) == count
    assert len({seed % 2**32 for seed in seeds}) >= count - 10
