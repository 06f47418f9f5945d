from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.defenses import Standard
from atent.errors import UserError
from atent.optim.entropy_sgd import EntropySGD
from atent.training.step import train_step
from toys import generator, small_batch, small_network

CURVATURE, CENTER = 3.0, 2.0


def descend(weights: Tensor, **fields: Any) -> Tensor:
    """One step on L(w) = CURVATURE / 2 (w - CENTER)^2, summed over the coordinates."""
    parameter = nn.Parameter(weights.clone())
    optimizer = EntropySGD([parameter], **fields)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (CURVATURE / 2 * (parameter - CENTER) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return parameter.detach()


def entropy_gradient(w: Tensor, gamma: float) -> Tensor:
    """Of -log of the integral of exp(-L(w') - gamma/2 (w - w')^2): exactly gamma a / (a + gamma) (w - c)."""
    return gamma * CURVATURE / (CURVATURE + gamma) * (w - CENTER)


def noisy(source: torch.Generator | None) -> Tensor:
    return descend(torch.zeros(5), noise=1.0, generator=source)


def test_the_noise_comes_from_the_generator_given_and_from_nothing_else() -> None:
    before = torch.get_rng_state()
    first, again, other = (noisy(generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(noisy(None), noisy(None))  # its own, with a fixed seed
    assert torch.equal(torch.get_rng_state(), before)


def test_a_training_step_hands_its_generator_to_the_optimizer() -> None:
    """A step without a defense's draws: Langevin noise is all that differs."""
    x, y = small_batch()

    def trained(seed: int) -> Tensor:
        model = small_network(dropout=0)
        optimizer = EntropySGD(model.parameters(), noise=0.1)
        train_step(model, optimizer, Standard(), x, y, "linf:0.1", generator(seed))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_long_chain_finds_the_gradient_of_the_local_entropy(noise: float) -> None:
    """w - mu is the gradient divided by gamma; the law of w' has variance 1 / (a + gamma) a coordinate."""
    gamma, start = 0.5, torch.full((20_000,), 5.0)
    moved = descend(start, lr=1.0, steps=400, step=0.02, gamma=gamma, noise=noise, share=0.02)
    expected = start - entropy_gradient(start, gamma) / gamma
    error = float((moved - expected).mean())
    # The average remembers w by .98^400 = 3e-4; the mean over coordinates scatters by 1 / sqrt(3.5 * 20,000) = .004.
    assert abs(error) < 0.003 + 0.012 * noise
    assert (float((moved - expected).std()) > 0.05) == (noise > 0)


def test_few_steps_are_the_recursion_of_the_algorithm() -> None:
    w, chain, average = 5.0, 5.0, 5.0
    for _ in range(5):
        chain -= 0.1 * (CURVATURE * (chain - CENTER) + 0.7 * (chain - w))
        average = 0.25 * average + 0.75 * chain
    expected = w - 0.9 * (w - average)
    moved = descend(torch.tensor([w]), lr=0.9, steps=5, step=0.1, gamma=0.7, noise=0.0, share=0.75)
    assert float(moved) == pytest.approx(expected, rel=1e-6)


def test_gamma_grows_with_each_step_of_the_weights() -> None:
    """Without a loss and with noise, the chain is drawn back to w ever more strongly."""
    parameter = nn.Parameter(torch.zeros(20_000))
    optimizer = EntropySGD([parameter], lr=1e-9, steps=50, step=0.1, gamma=1.0, growth=1.0, noise=1.0, share=1.0)
    spreads = []

    def closure() -> float:
        spreads.append(float(parameter.detach().std()))
        return 0.0

    for _ in range(3):
        optimizer.step(closure)
    for gamma, spread in zip((1, 2, 4), spreads[49::50], strict=True):
        assert spread == pytest.approx((gamma * (1 - 0.1 * gamma / 2)) ** -0.5, rel=0.03)  # the discrete chain's law


def test_gamma_stops_growing_before_the_chain_diverges() -> None:
    """Beyond gamma = 2 / step every Langevin step would overshoot w; beyond 1 / step gamma does not grow."""
    parameter = nn.Parameter(torch.zeros(50))
    optimizer = EntropySGD([parameter], steps=20, step=0.1, growth=1e6)
    for _ in range(60):  # 1e-3 * 1e6^60 is beyond the largest float
        optimizer.step(lambda: 0.0)
    assert float(parameter.detach().abs().max()) < 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps 0; allowed: 1"),
        ({"step": 0.0}, "step 0.0; allowed: .* above 0"),
        ({"lr": -1.0}, "lr -1.0"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EntropySGD([nn.Parameter(torch.zeros(2))], **fields)


def test_the_number_of_steps_is_part_of_its_state() -> None:
    one, two = (EntropySGD([nn.Parameter(torch.zeros(2))], steps=steps) for steps in (7, 5))
    two.load_state_dict(one.state_dict())
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    two.step(closure)
    assert calls == 7


def test_a_closure_that_fails_leaves_the_weights_as_they_were() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = EntropySGD([parameter], steps=3)
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ArithmeticError
        parameter.grad = torch.ones(3)
        return 0.0

    with pytest.raises(ArithmeticError):
        optimizer.step(closure)
    assert parameter.tolist() == [1, 1, 1]


def test_batchnorms_statistics_fit_the_weights_it_ends_with() -> None:
    """They are gathered along the chain; in eval mode the network must still answer as in train mode."""
    model, (x, y) = small_network(dropout=0).train(), small_batch()
    optimizer = EntropySGD(model.parameters(), steps=5, step=0.02)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = float(closure().detach())
    for _ in range(20):
        optimizer.step(closure)
    with torch.no_grad():
        trained, evaluated = (float(nn.functional.cross_entropy(model.train(mode)(x), y)) for mode in (True, False))
    assert trained < 0.7 * before
    assert abs(evaluated - trained) < 0.1 * before
