"""The derivative of ReLU where it is off: closed forms, and a network whose pixels no plain gradient moves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from atent import Atent, Mart, Pgd, PgdAt, leaky_gradients, worst_point
from atent.defenses import Search
from atent.network import predict
from atent.threat import Threat
from toys import generator, small_batch, small_network

RELU: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "Tensor.relu_": Tensor.relu_,
    "functional": functional.relu,
    "functional, in place": lambda u: functional.relu(u, True),
    "functional, inplace=True": lambda u: functional.relu(input=u, inplace=True),
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
}
THREAT = Threat("linf", 0.3)


def switched_off() -> nn.Sequential:
    """Logits (.5, relu(x_1 + ... + x_16 - 4)): at black pixels the unit is off; all of them at .3 give .5 < .8."""
    first, second = nn.Linear(16, 1), nn.Linear(1, 2)
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.bias.fill_(-4.0)
        second.weight.copy_(torch.tensor([[0.0], [1.0]]))
        second.bias.copy_(torch.tensor([0.5, 0.0]))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


def black(count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1, 4, 4), torch.zeros(count, dtype=torch.long)


@pytest.mark.parametrize("name", RELU)
def test_values_stay_and_the_derivative_is_the_slope_where_a_unit_is_off(name: str) -> None:
    u = torch.tensor([-2.0, -0.5, 0.5, 3.0], requires_grad=True)
    with leaky_gradients(0.1):
        y = RELU[name](u * 1)
    (gradient,) = torch.autograd.grad(y.sum(), u)
    assert y.tolist() == [0, 0, 0.5, 3]
    torch.testing.assert_close(gradient, torch.tensor([0.1, 0.1, 1, 1]))


def test_in_place_changes_the_tensor_that_a_network_goes_on_using() -> None:
    u = torch.tensor([-1.0, 2.0])
    with leaky_gradients(0.1):
        functional.relu(u, inplace=True)
    assert u.tolist() == [0, 2]


def test_the_gradient_of_two_layers_is_the_product_of_their_matrices() -> None:
    one, two = torch.randn(5, 3, generator=generator(1)), torch.randn(5, generator=generator(2))
    x = torch.randn(3, generator=generator(3), requires_grad=True)
    with leaky_gradients(0.25):
        (gradient,) = torch.autograd.grad(two @ torch.relu(one @ x), x)
    slopes = torch.where(one @ x > 0, 1.0, 0.25).detach()
    torch.testing.assert_close(gradient, one.T @ (slopes * two))


def test_after_the_block_and_at_slope_0_derivatives_are_those_of_torch() -> None:
    u = torch.tensor([-1.0, 1.0], requires_grad=True)
    with leaky_gradients(0.5):
        pass
    assert torch.autograd.grad(torch.relu(u).sum(), u)[0].tolist() == [0, 1]
    with leaky_gradients(0.0):
        assert torch.autograd.grad(torch.relu(u).sum(), u)[0].tolist() == [0, 1]


def test_half_precision_and_memory_layout_are_kept() -> None:
    u = torch.randn(2, 3, 4, 4).bfloat16().contiguous(memory_format=torch.channels_last).requires_grad_()
    with leaky_gradients(0.1):
        y = nn.ReLU()(u)
    y.sum().backward()
    assert u.grad is not None
    for tensor in (y, u.grad):
        assert tensor.dtype == torch.bfloat16
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_pgd_with_a_leak_breaks_a_network_whose_gradients_are_0() -> None:
    model, (x, y) = switched_off(), black()
    plain = Pgd(steps=5, start="center")(model, x, y, THREAT, generator())
    leaky = Pgd(steps=5, start="center", leak=0.01)(model, x, y, THREAT, generator())
    assert torch.equal(plain, x)
    assert predict(model, leaky).tolist() == [1, 1]
    torch.testing.assert_close(leaky, torch.full_like(x, 0.3))


@pytest.mark.parametrize("defense", [PgdAt, Mart, Atent], ids=lambda defense: defense.__name__)
def test_the_search_of_a_training_passes_units_that_are_off(defense: type[Search]) -> None:
    """A chain of `atent` with several samples, too, which otherwise shares its passes with the loss."""
    fields: dict[str, Any] = {"steps": 5, "reach": 2.0, "decay": 1.0, "start": "center", "temperature": 0.0}
    fields |= {"share": 0.5} if defense is Atent else {}
    model, (x, y) = switched_off(), black()
    ends = [list(defense(**fields, leak=leak)(model, x, y, THREAT, generator()))[-1].x_adv for leak in (0.0, 0.01)]
    assert torch.equal(ends[0], x)
    torch.testing.assert_close(ends[1], torch.full_like(x, 0.3))


def test_the_loss_of_a_training_has_the_gradients_of_the_network() -> None:
    """The leak is in the search alone: the weights' gradient is that of cross-entropy at the same point."""
    model, (x, y) = small_network(dropout=0).eval(), small_batch()
    weights = list(model.parameters())
    found = worst_point(model, x, y, "linf:0.1", generator(), steps=3, leak=0.3)
    expected = torch.autograd.grad(functional.cross_entropy(model(found), y), weights)
    (term,) = PgdAt(steps=3, leak=0.3)(model, x, y, "linf:0.1", generator())
    assert torch.equal(term.x_adv, found)
    for one, other in zip(torch.autograd.grad(term.loss.mean(), weights), expected, strict=True):
        torch.testing.assert_close(one, other)
