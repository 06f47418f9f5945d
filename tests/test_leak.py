"""The derivative of ReLU where it is off: closed forms, and a network whose pixels no plain gradient moves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from atent import Apgd, Atent, Pgd, PgdAt, leaky_gradients
from atent.defenses import DEFENSES, Search
from atent.errors import UserError
from atent.methods import make
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


def test_apgd_with_a_leak_does_too() -> None:
    model, (x, y) = switched_off(), black()
    found = [predict(model, Apgd(steps=10, leak=leak)(model, x, y, THREAT, generator())) for leak in (0.0, 0.01)]
    assert [labels.tolist() for labels in found] == [[0, 0], [1, 1]]


FIELDS: dict[str, Any] = {"steps": 5, "reach": 2.0, "decay": 1.0, "start": "center", "temperature": 0.0}
SEARCHES: dict[str, dict[str, Any]] = {
    "pgd-at": {"name": "pgd-at", **FIELDS},
    "mart": {"name": "mart", **FIELDS},
    "atent": {"name": "atent", **FIELDS},
    "atent, samples": {"name": "atent", **FIELDS, "share": 0.5},
    "smooth-adv": {"name": "smooth-adv", **FIELDS, "sigma": 1e-6},
    "fast": {"name": "fast", "start": "center"},
    "n-fgsm": {"name": "n-fgsm", "start": "center"},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_search_of_a_training_passes_units_that_are_off(name: str) -> None:
    """As a training back-propagates: samples of `atent` must not hand their own gradient to the next step."""
    model, (x, y) = switched_off().eval(), black()
    for leak, end in ((0.0, 0.0), (0.01, 0.3)):
        for term in make(DEFENSES, {**SEARCHES[name], "leak": leak}, "defense")(model, x, y, THREAT, generator()):
            term.loss.sum().backward()
        torch.testing.assert_close(term.x_adv, torch.full_like(x, end), atol=1e-4, rtol=0)


@pytest.mark.parametrize("defense", [PgdAt(steps=3, leak=0.3), Atent(steps=3, share=0.5, leak=0.3)], ids=repr)
def test_the_loss_of_a_training_has_the_gradients_of_the_network(defense: Search) -> None:
    """The leak is in the search alone: between terms, too, the caller has the derivatives of torch."""
    model, (x, y) = small_network(dropout=0).eval(), small_batch()
    weights = list(model.parameters())
    for term in defense(model, x, y, Threat("linf", 0.1), generator()):
        expected = torch.autograd.grad(functional.cross_entropy(model(term.x_adv), y, reduction="none").sum(), weights)
        found = torch.autograd.grad(term.loss.sum(), weights)
        scale = float(found[-1].norm() / expected[-1].norm())  # the share of this sample
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, scale * other)
        u = torch.tensor([-1.0], requires_grad=True)
        assert torch.autograd.grad(torch.relu(u).sum(), u)[0] == 0


def test_blocks_nest_the_inner_one_counts() -> None:
    u = torch.tensor([-1.0, 1.0], requires_grad=True)
    with leaky_gradients(0.5):
        with leaky_gradients(0.1):
            (inner,) = torch.autograd.grad(nn.ReLU(inplace=True)(u * 1).sum(), u)
        (outer,) = torch.autograd.grad(nn.ReLU(inplace=True)(u * 1).sum(), u)
    torch.testing.assert_close(inner, torch.tensor([0.1, 1]))
    torch.testing.assert_close(outer, torch.tensor([0.5, 1]))


def test_torch_func_takes_the_leak() -> None:
    u = torch.tensor([-1.0, 1.0])
    with leaky_gradients(0.25):
        found = torch.func.vmap(torch.func.grad(lambda one: functional.relu(one)))(u)
    assert found.tolist() == [0.25, 1]


@pytest.mark.parametrize("leak", [-0.1, 1.0, float("nan")])
def test_a_leak_outside_its_range_is_refused(leak: float) -> None:
    with pytest.raises(UserError, match=r"leak .*; allowed: 0 or more, below 1"), leaky_gradients(leak):
        pass
