import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.ascent import Objective, Points, ascend
from atent.attacks import ATTACKS, AtentChain, Attack, CwL2, CwLinf, DeepFool, Fgsm, MinimalAttack, Pgd
from atent.attacks.protocol import pull_back, until_broken
from atent.errors import UserError
from atent.evaluate import check_inside
from atent.losses import LOSSES, LossName, cross_entropy, margin
from atent.threat import Threat
from toys import THREATS, UNBOXED, dual_norm, generator, linear, small_batch, small_network, two_class_linear

# Fewer steps, for speed; a row that is not named here runs as it is.
QUICK: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 3},
    "atent-chain": {"steps": 3},
    "deepfool": {"steps": 3},
    "smooth-pgd": {"steps": 3, "sigma": 0.001},
    "cw-l2": {"steps": 20, "searches": 3},
    "cw-linf": {"steps": 20, "searches": 3},
}
ONLY = {"cw-l2": "l2", "cw-linf": "linf"}
RANDOM = ("pgd", "atent-chain", "smooth-pgd")
ROWS = [(name, threat) for name in ATTACKS for threat in THREATS if ONLY.get(name, threat.norm) == threat.norm]
rows = pytest.mark.parametrize(("name", "threat"), ROWS, ids=[f"{name}-{threat}" for name, threat in ROWS])
threats = pytest.mark.parametrize("threat", THREATS, ids=str)
losses = pytest.mark.parametrize("loss", LOSSES)


def quick(name: str) -> Attack:
    return ATTACKS[name](**QUICK.get(name, {}))


@rows
def test_points_are_inside_and_the_model_is_untouched(name: str, threat: Threat) -> None:
    model = small_network().train()
    x, y = small_batch()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    x_before = x.clone()
    x_adv = quick(name)(model, x, y, threat, generator())
    check_inside(x_adv, x, threat, "attack")
    assert torch.equal(x, x_before)
    assert not x_adv.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key


@rows
def test_same_generator_same_bits_another_generator_other_bits(name: str, threat: Threat) -> None:
    model, (x, _) = small_network().eval(), small_batch()
    y = model(x).argmax(1)  # all right, so all are attacked
    first, again, other = (quick(name)(model, x, y, threat, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) is (name not in RANDOM)


@rows
def test_radius_zero_gives_x(name: str, threat: Threat) -> None:
    model, (x, y) = small_network(), small_batch()
    assert torch.equal(quick(name)(model, x, y, threat.scaled(0), generator()), x)


@rows
def test_misclassified_examples_come_back_as_they_are(name: str, threat: Threat) -> None:
    model, (x, _) = small_network().eval(), small_batch()
    wrong = (model(x).argmax(1) + 1) % 3
    assert torch.equal(quick(name)(model, x, wrong, threat, generator()), x)


EXACT: dict[str, dict[str, Any]] = {
    "pgd": {"start": "center"},
    "atent-chain": {"start": "center"},
    "smooth-pgd": {"start": "center", "sigma": 0.001},
}


@rows
def test_a_linear_network_falls_exactly_within_its_distance(name: str, threat: Threat) -> None:
    """The decision boundary is at distance |w.x + b| / dual norm: broken just inside it, robust just outside."""
    assert_falls_within_its_distance(ATTACKS[name](**EXACT.get(name, {})), threat, classes=2)


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


MINIMAL: list[tuple[MinimalAttack, Threat]] = [(DeepFool(), threat) for threat in THREATS] + [
    (CwL2(), THREATS[1]),
    (CwLinf(), THREATS[0]),
]
minimal = pytest.mark.parametrize(
    ("attack", "threat"), MINIMAL, ids=[f"{type(attack).__name__}-{threat.norm}" for attack, threat in MINIMAL]
)


@minimal
def test_the_nearest_point_of_a_linear_network_is_found_whatever_the_radius(
    attack: MinimalAttack, threat: Threat
) -> None:
    """With several classes the boundary is the nearest of |f_k| / |grad f_k|_*, f_k the margin to class k."""
    model = linear(torch.randn(5, 25, generator=generator(7)), torch.tensor([2.0, 0, 0, 0, 0]))
    x = 0.5 + 0.03 * torch.randn(20, 1, 5, 5, generator=generator(8))
    logits = model(x)
    y = logits.argmax(1)
    weights = next(model.parameters()).detach()
    slopes = weights[None] - weights[y][:, None]  # (n, classes, pixels); 0 for the true class
    gaps = logits.gather(1, y[:, None]) - logits
    distances = gaps / dual_norm(slopes, threat).clamp_min(1e-12)
    exact = distances.scatter(1, y[:, None], float("inf")).amin(1).detach()
    found = attack.nearest(model, x, y, threat.scaled(0.01), generator())
    assert (model(found).argmax(1) != y).all()
    assert ((found > 0) & (found < 1)).all()  # the box does not cut
    ratio = threat.size(found - x) / exact
    assert ratio.min() >= 0.9999
    assert ratio.max() <= 1.02


@minimal
def test_a_minimal_attack_gives_its_nearest_point_or_x(attack: MinimalAttack, threat: Threat) -> None:
    model, (x, _) = small_network().eval(), small_batch()
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # misclassified from the start
    found = attack.nearest(model, x, y, threat, generator())
    assert torch.equal(found[0], x[0])
    sizes = threat.size(found - x)
    assert (sizes[1:] > 0).all()
    threat = Threat(threat.norm, float(sizes[1:].median()))
    x_adv = attack(model, x, y, threat, generator())
    inside = sizes <= threat.eps
    assert 1 < inside.sum() < len(x)
    assert torch.equal(x_adv[inside], found[inside])
    assert torch.equal(x_adv[~inside], x[~inside])


def test_a_point_is_pulled_back_to_the_boundary() -> None:
    """With the confidence asked for; a point that is at the boundary already stays."""
    model = two_class_linear(torch.ones(4), bias=-1.0)  # class 1 where the pixels' sum is above 1
    x, y = torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)
    found = torch.tensor([1.0, 0.3, 0.2501])[:, None].expand(3, 4)
    sums = pull_back(model, x, y, found).sum(1)
    assert (sums > 1).all()
    assert (sums < 1.004).all()
    sure = pull_back(model, x, y, found, confidence=0.1)
    assert 1.1 < float(sure[0].sum()) < 1.105
    assert torch.equal(sure[2], found[2])


def test_cw_comes_closer_than_deepfool_with_which_it_begins() -> None:
    """On a network that is far from linear."""
    torch.manual_seed(0)
    model, (x, _) = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.Tanh(), nn.Linear(64, 3)), small_batch(32)
    with torch.no_grad():
        next(model.parameters()).mul_(10)
    y = model(x).argmax(1)
    mine, theirs = (
        THREATS[1].size(attack.nearest(model, x, y, THREATS[1], generator()) - x) for attack in (CwL2(), DeepFool())
    )
    assert (mine <= theirs).all()
    assert (mine < 0.99 * theirs).float().mean() > 0.3


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_cw_points_are_as_sure_as_asked(confidence: float) -> None:
    model, (x, _) = small_network().eval(), small_batch(32)
    y = model(x).argmax(1)
    found = CwL2(confidence=confidence, steps=30, searches=4).nearest(model, x, y, THREATS[1], generator())
    moved = (found != x).flatten(1).any(1)
    assert moved.sum() > 16
    assert (margin(model(found), y)[moved] > confidence).all()


@pytest.mark.parametrize(("attack", "threat"), [(CwL2(), THREATS[0]), (CwLinf(), THREATS[1])])
def test_a_threat_of_another_norm_is_refused(attack: MinimalAttack, threat: Threat) -> None:
    model, (x, y) = small_network(), small_batch()
    with pytest.raises(UserError, match=rf"{attack.label.lower()} with threat {threat}; allowed: l"):
        attack(model, x, y, threat, generator())


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
    assert len(sizes) == 1 + 10  # at x, then at x'_0 .. x'_9: none to look where examples broke
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < len(x)
    assert torch.equal(model(x_adv).argmax(1) != y, broken)


def test_an_attack_ends_when_all_are_broken() -> None:
    model = two_class_linear(torch.tensor([1.0]))
    x, y = torch.tensor([[0.01], [0.02]]), torch.ones(2, dtype=torch.long)
    sizes = count_passes(model)
    Pgd(steps=10, restarts=5, start="center")(model, x - 0.5, y, Threat("linf", 0.1, UNBOXED), generator())
    assert sizes == [2]  # wrong from the start: looked at once
    sizes.clear()
    Pgd(steps=10, restarts=5, start="center")(model, x, y, Threat("linf", 0.1, UNBOXED), generator())
    assert sizes == [2, 2, 2]  # at x, for the first gradient, and where both are broken


def test_a_broken_point_outside_the_ball_does_not_count() -> None:
    """A chain that is projected at its end only passes through points that would be broken, but are too far."""
    weights = torch.randn(25, generator=generator(6))
    threat = Threat("l2", 0.1, UNBOXED)
    model = two_class_linear(weights, bias=1.5 * float(threat.eps * weights.norm()))
    attack = AtentChain(steps=10, step=0.1, project="never", noise=0)
    x = torch.zeros(1, 25)
    x_adv = attack(model, x, torch.tensor([1]), threat, generator())
    check_inside(x_adv, x, threat, "attack")
    assert model(x_adv).argmax(1).item() == 1


def test_restarts_are_per_example() -> None:
    """Only examples that are still right are attacked again, and a broken one keeps its broken point."""
    model = two_class_linear(torch.tensor([1.0]))
    x, y = torch.tensor([[0.2], [0.4], [0.6]]), torch.ones(3, dtype=torch.long)
    tried: list[list[float]] = []

    def search(objective: Objective, x: Tensor) -> Points:  # noqa: ARG001
        tried.append([round(value, 1) for value in x.flatten().tolist()])
        yield x - 0.2 * len(tried) - 0.1

    threat = Threat("linf", 1.0, UNBOXED)
    x_adv = until_broken(model, x, y, threat, loss=cross_entropy, restarts=3, search=search)
    assert tried == [[0.2, 0.4, 0.6], [0.4, 0.6], [0.6]]
    torch.testing.assert_close(x_adv.flatten(), torch.tensor([-0.1, -0.1, -0.1]))


def test_labels_name_what_was_run() -> None:
    assert Pgd(steps=40, restarts=10).label == "PGD-40x10"
    assert Pgd(steps=20, step=0.01).label == "PGD-20 (step 0.01)"
    assert Pgd(loss="margin", steps=5).label == "PGD-5 (loss margin)"
    assert Pgd(loss="margin", restarts=10).label == "PGD-40x10 (loss margin)"
    assert [attack.label for attack in (Fgsm(), DeepFool(), CwL2(), CwLinf())] == [
        "FGSM",
        "DeepFool",
        "CW-l2",
        "CW-linf",
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "threat"),
    [
        (DeepFool(), "L2DeepFoolAttack", {}, THREATS[1]),
        (DeepFool(), "LinfDeepFoolAttack", {}, THREATS[0]),
        (CwL2(), "L2CarliniWagnerAttack", {"binary_search_steps": 6, "steps": 100, "stepsize": 0.1}, THREATS[1]),
    ],
)
def test_distances_are_no_larger_than_foolboxs(
    ours: MinimalAttack, theirs: str, settings: dict[str, Any], threat: Threat
) -> None:
    foolbox = pytest.importorskip("foolbox", reason="Foolbox is not installed")
    model, (x, _) = small_network().eval(), small_batch(64)
    y = model(x).argmax(1)
    borrowed = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    found = getattr(foolbox.attacks, theirs)(**settings)(borrowed, x, y, epsilons=None)[0]
    assert (model(found).argmax(1) != y).all()
    mine = ours.nearest(model, x, y, threat, generator())
    assert (model(mine).argmax(1) != y).all()
    assert threat.size(mine - x).median() <= 1.05 * threat.size(found - x).median()
