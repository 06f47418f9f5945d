from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atent.randomness import Source, derive, derive_seed, normal_like, select, spawn, uniform_like
from toys import generator


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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("draw", [uniform_like, normal_like])
def test_a_generator_per_image_gives_each_image_its_own_numbers(
    draw: Callable[[Tensor, Source], Tensor], layout: torch.memory_format
) -> None:
    x = torch.empty(5, 3, 4, 4).to(memory_format=layout)
    together = draw(x, spawn(generator(), 5))
    assert together.stride() == x.stride()
    assert len({float(row.sum()) for row in together}) == 5
    for k, one in enumerate(spawn(generator(), 5)):
        assert torch.equal(draw(x[k : k + 1], [one]), together[k : k + 1])
    some = torch.tensor([3, 1])
    assert torch.equal(draw(x[some], select(spawn(generator(), 5), some)), together[some])


def test_one_generator_draws_as_torch_does() -> None:
    x = torch.empty(5, 3, 4, 4)
    assert torch.equal(uniform_like(x, generator(), -1, 1), torch.empty_like(x).uniform_(-1, 1, generator=generator()))
    assert torch.equal(normal_like(x, generator()), torch.empty_like(x).normal_(generator=generator()))
