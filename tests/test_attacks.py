import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atent.attacks import ATTACKS, Attack, Pgd
from atent.attacks.protocol import until_broken
from atent.evaluate import check_inside
from atent.threat import Threat
from toys import THREATS, generator, small_batch, small_network, two_class_linear

attacks = pytest.mark.parametrize("build", ATTACKS.values(), ids=ATTACKS.keys())
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


@threats
@attacks
def test_points_are_inside_and_the_model_is_untouched(build: Callable[..., Attack], threat: Threat) -> None:
    model = small_network().train()
    x, y = small_batch()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    x_before = x.clone()
    x_adv = build(steps=3)(model, x, y, threat, generator())
    check_inside(x_adv, x, threat, "attack")
    assert torch.equal(x, x_before)
    assert not x_adv.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@threats
@attacks
def test_same_generator_same_bits_another_generator_other_bits(build: Callable[..., Attack], threat: Threat) -> None:
    model, (x, _) = small_network().eval(), small_batch()
    y = model(x).argmax(1)  # all right, so all are attacked
    attack = build(steps=3)
    first, again, other = (attack(model, x, y, threat, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@attacks
def test_radius_zero_gives_x(build: Callable[..., Attack], norm: str) -> None:
    model, (x, y) = small_network(), small_batch()
    assert torch.equal(build(steps=3)(model, x, y, Threat.parse(f"{norm}:0"), generator()), x)


@threats
@attacks
def test_a_linear_network_falls_exactly_within_its_distance(build: Callable[..., Attack], threat: Threat) -> None:
    """The decision boundary is at distance |w.x + b| / dual norm: broken just inside it, robust just outside."""
    weights = torch.randn(25, generator=generator(6))
    x = torch.full((1, 1, 5, 5), 0.5)
    threat = threat.scaled(0.4)  # small enough for the box not to bind, also on a chain that leaves the ball
    dual = weights.norm(p=1 if threat.norm == "linf" else 2)
    for factor, robust in ((0.98, False), (1.02, True)):
        margin = float(threat.eps * dual) * factor
        model = two_class_linear(weights, bias=margin - float(weights.sum()) / 2)
        x_adv = build(steps=40, start="center")(model, x, torch.tensor([1]), threat, generator())
        assert (model(x_adv).argmax(1) == 1).item() is robust


def test_restarts_are_per_example() -> None:
    """Only examples that are still right are attacked again, and a broken one keeps its broken point."""
    model = two_class_linear(torch.tensor([1.0]))
    x, y = torch.tensor([[0.2], [0.4], [0.6]]), torch.ones(3, dtype=torch.long)
    tried: list[list[float]] = []

    def attempt(x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
        tried.append([round(value, 1) for value in x.flatten().tolist()])
        return x - 0.2 * len(tried) - 0.1

    x_adv = until_broken(model, x, y, 3, attempt)
    assert tried == [[0.2, 0.4, 0.6], [0.4, 0.6], [0.6]]
    torch.testing.assert_close(x_adv.flatten(), torch.tensor([-0.1, -0.1, -0.1]))


def test_misclassified_examples_come_back_as_they_are() -> None:
    model, (x, _) = small_network().eval(), small_batch()
    wrong = (model(x).argmax(1) + 1) % 3
    assert torch.equal(Pgd(steps=2)(model, x, wrong, THREATS[0], generator()), x)


def test_labels_name_what_was_run() -> None:
    assert Pgd(steps=40, restarts=10).label == "PGD-40x10"
    assert Pgd(steps=20, step=0.01).label == "PGD-20 (step 0.01)"
    assert Pgd(loss="margin", steps=5).label == "PGD-5 (loss margin)"
