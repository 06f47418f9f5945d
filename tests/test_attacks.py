import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.ascent import Objective, Points, ascend
from atent.attacks import ATTACKS, AtentChain, Attack, CwL2, CwLinf, DeepFool, Fgsm, Pgd
from atent.attacks.early_stopping import until_broken
from atent.errors import UserError
from atent.inputs import check_points
from atent.losses import LOSSES, LossName, cross_entropy
from atent.smoothing.smoothed import Smoothed
from atent.threat import Threat
from toys import THREATS, UNBOXED, dual_norm, generator, linear, small_batch, small_network, two_class_linear

# Fewer steps, for speed; a row that is not named here runs as it is.
QUICK: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 3},
    "apgd": {"steps": 3},
    "square": {"queries": 20},
    "atent-chain": {"steps": 3},
    "deepfool": {"steps": 3},
    "smooth-pgd": {"steps": 3},
    "cw-l2": {"steps": 20, "searches": 3},
    "cw-linf": {"steps": 20, "searches": 3},
}
ONLY = {"cw-l2": "l2", "cw-linf": "linf"}
RANDOM = ("pgd", "apgd", "square", "atent-chain", "smooth-pgd")
ROWS = [(name, threat) for name in ATTACKS for threat in THREATS if ONLY.get(name, threat.norm) == threat.norm]
rows = pytest.mark.parametrize(("name", "threat"), ROWS, ids=[f"{name}-{threat}" for name, threat in ROWS])
threats = pytest.mark.parametrize("threat", THREATS, ids=str)
losses = pytest.mark.parametrize("loss", LOSSES)


def quick(name: str) -> Attack:
    return ATTACKS[name](**QUICK.get(name, {}))


def attackable(name: str, model: nn.Module) -> nn.Module:
    """The model, or for the attack of smoothed networks the same with hardly any noise."""
    return Smoothed(model, 0.001) if name == "smooth-pgd" and isinstance(model, nn.Module) else model


@rows
def test_points_are_inside_and_the_model_is_untouched(name: str, threat: Threat) -> None:
    model = small_network().train()
    x, y = small_batch()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    x_before = x.clone()
    x_adv = quick(name)(attackable(name, model), x, y, threat, generator())
    check_points(x_adv, x, threat, "attack")
    assert torch.equal(x, x_before)
    assert not x_adv.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key


@threats
def test_a_wrong_point_outside_the_box_does_not_count(threat: Threat) -> None:
    """Only a start outside the box is misclassified here, and it is no image."""
    model, x = linear(torch.tensor([[0.0], [-1.0]]), 0.0), torch.zeros(50, 1, 1, 1)
    y = torch.zeros(50, dtype=torch.long)
    x_adv = Pgd(steps=3, restarts=5, start="unboxed")(model, x, y, threat, generator())
    check_points(x_adv, x, threat, "attack")


@threats
def test_a_random_network_is_attacked_to_the_end_of_the_path(threat: Threat) -> None:
    """A single wrong answer of such a network proves nothing: stopping there would leave the point half-way."""
    slope = torch.randn(36, generator=generator(3))
    steady = two_class_linear(slope, bias=float(-0.5 * slope.sum()))

    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noise: Tensor = 3 * torch.randn(len(x), 2) + steady(x)
            return noise

    x = torch.full((30, 1, 6, 6), 0.5)
    y = torch.arange(30) % 2
    torch.manual_seed(0)
    x_adv = Pgd(steps=10)(Random(), x, y, threat, generator())
    torch.testing.assert_close(threat.size(x_adv - x), torch.full((30,), threat.eps))
    moved = steady(x_adv)[:, 1].detach() * (1 - 2 * y)
    assert (moved > 0.9 * threat.eps * dual_norm(slope, threat)).all()


@rows
def test_same_generator_same_bits_another_generator_other_bits(name: str, threat: Threat) -> None:
    model, (x, _) = small_network().eval(), small_batch()
    y = model(x).argmax(1)  # all right, so all are attacked
    first, again, other = (quick(name)(attackable(name, model), x, y, threat, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) is (name not in RANDOM)


@rows
def test_radius_zero_gives_x(name: str, threat: Threat) -> None:
    model, (x, y) = small_network(), small_batch()
    assert torch.equal(quick(name)(attackable(name, model), x, y, threat.scaled(0), generator()), x)


@rows
def test_misclassified_examples_come_back_as_they_are(name: str, threat: Threat) -> None:
    """But for those of a smoothed network: its predictions are random, so all are attacked (test_smoothing.py)."""
    model, (x, _) = small_network().eval(), small_batch()
    wrong = (model(x).argmax(1) + 1) % 3
    points = quick(name)(attackable(name, model), x, wrong, threat, generator())
    assert torch.equal(points, x) is (name != "smooth-pgd")


EXACT: dict[str, dict[str, Any]] = {
    "pgd": {"start": "center"},
    "atent-chain": {"start": "center"},
    "smooth-pgd": {"start": "center"},
    "square": {"queries": 1000},
}


@rows
def test_a_linear_network_falls_exactly_within_its_distance(name: str, threat: Threat) -> None:
    """The decision boundary is at distance |w.x + b| / dual norm: broken just inside it, robust just outside."""
    if (name, threat.norm) == ("square", "l2"):
        pytest.skip("bumps come close to the worst case and do not reach it")
    attack = ATTACKS[name](**EXACT.get(name, {}))
    assert_falls_within_its_distance(lambda model, *batch: attack(attackable(name, model), *batch), threat, classes=2)


@losses
@threats
def test_every_loss_finds_the_worst_case_of_a_linear_network(loss: LossName, threat: Threat) -> None:
    for attack in (Pgd(loss=loss, start="center"), Pgd(loss=loss, restarts=2), Fgsm(loss=loss)):
        assert_falls_within_its_distance(attack, threat, classes=3)


def assert_falls_within_its_distance(attack: Attack, threat: Threat, classes: int) -> None:
    weights = torch.randn(25, generator=generator(6))
    x = torch.full((1, 1, 5, 5), 0.5)
    threat = threat.scaled(0.4)  # small enough for the box not to bind, also on a chain that leaves the ball
    for factor, robust in ((0.98, False), (1.02, True)):
        gap = float(threat.eps * dual_norm(weights, threat)) * factor
        model = two_class_linear(weights, bias=gap - float(weights.sum()) / 2, idle=classes - 2)
        x_adv = attack(model, x, torch.tensor([1]), threat, generator())
        assert (model(x_adv).argmax(1) == 1).item() is robust


def test_dlr_refuses_two_classes() -> None:
    model, x = two_class_linear(torch.ones(4)), torch.full((1, 4), 0.5)
    with pytest.raises(UserError, match="the network has 2 classes"):
        Pgd(loss="dlr")(model, x, torch.tensor([1]), THREATS[0], generator())


def count_passes(model: nn.Module) -> list[int]:
    """The sizes of the batches that the model will see."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    return sizes


@losses
@threats
def test_dropping_finds_whoever_is_wrong_anywhere_on_the_path(threat: Threat, loss: LossName) -> None:
    """The same examples as a loop that drops none and looks at every point, with fewer passes."""
    model, (x, _) = small_network(dropout=0).eval(), small_batch(64)
    y = model(x).argmax(1)
    threat = threat.scaled(0.5)
    points = [threat.sample(x, generator())]
    points += ascend(lambda point: LOSSES[loss](model(point), y), x, threat, steps=10, generator=generator())
    broken = torch.stack([model(point).argmax(1) != y for point in points]).any(0)
    assert 0 < broken.sum() < len(x)
    sizes = count_passes(model)
    x_adv = Pgd(steps=10, loss=loss)(model, x, y, threat, generator())
    assert len(sizes) == 2 + 10  # at x, again at a few, then at x'_0 .. x'_9: none to look where examples broke
    assert sizes[2:] == sorted(sizes[2:], reverse=True)
    assert sizes[-1] < len(x)
    assert torch.equal(model(x_adv).argmax(1) != y, broken)


def test_an_attack_ends_when_all_are_broken() -> None:
    model = two_class_linear(torch.tensor([1.0]))
    x, y = torch.tensor([[0.01], [0.02]]), torch.ones(2, dtype=torch.long)
    sizes = count_passes(model)
    Pgd(steps=10, restarts=5, start="center")(model, x - 0.5, y, Threat("linf", 0.1, UNBOXED), generator())
    assert sizes == [2, 2]  # wrong from the start; a second look shows that the network is not random
    sizes.clear()
    Pgd(steps=10, restarts=5, start="center")(model, x, y, Threat("linf", 0.1, UNBOXED), generator())
    assert sizes == [2, 2, 2, 2]  # at x twice, for the first gradient, and where both are broken


def test_a_broken_point_outside_the_ball_does_not_count() -> None:
    """A chain that is projected at its end only passes through points that would be broken, but are too far."""
    weights = torch.randn(25, generator=generator(6))
    threat = Threat("l2", 0.1, UNBOXED)
    model = two_class_linear(weights, bias=1.5 * float(threat.eps * weights.norm()))
    attack = AtentChain(steps=10, step=0.1, project="never", noise=0)
    x = torch.zeros(1, 25)
    x_adv = attack(model, x, torch.tensor([1]), threat, generator())
    check_points(x_adv, x, threat, "attack")
    assert model(x_adv).argmax(1).item() == 1


def test_restarts_are_per_example() -> None:
    """Only examples that are still right are attacked again, and a broken one keeps its broken point."""
    model = two_class_linear(torch.tensor([1.0]))
    x, y = torch.tensor([[0.2], [0.4], [0.6]]), torch.ones(3, dtype=torch.long)
    tried: list[list[float]] = []

    def search(objective: Objective, x: Tensor, **_: Any) -> Points:  # noqa: ARG001
        tried.append([round(value, 1) for value in x.flatten().tolist()])
        yield x - 0.2 * len(tried) - 0.1

    threat = Threat("linf", 1.0, UNBOXED)
    x_adv = until_broken(model, x, y, threat, generator(), search, loss=cross_entropy, restarts=3)
    assert tried == [[0.2, 0.4, 0.6], [0.4, 0.6], [0.6]]
    torch.testing.assert_close(x_adv.flatten(), torch.tensor([-0.1, -0.1, -0.1]))


def test_titles_name_what_was_run() -> None:
    assert Pgd(steps=40, restarts=10).title == "PGD-40x10"
    assert Pgd(steps=20, step=0.01).title == "PGD-20 (step 0.01)"
    assert Pgd(loss="margin", steps=5).title == "PGD-5 (loss margin)"
    assert Pgd(loss="margin", restarts=10).title == "PGD-40x10 (loss margin)"
    assert [attack.title for attack in (Fgsm(), DeepFool(), CwL2(), CwLinf())] == [
        "FGSM",
        "DeepFool",
        "CW-l2",
        "CW-linf",
    ]
