"""Attacks that look for the nearest misclassified point: CW and DeepFool."""

from typing import Any

import pytest
import torch
from torch import nn

from atent.attacks import CwL2, CwLinf, DeepFool, MinimalAttack, Pgd
from atent.attacks.nearest import pull_back
from atent.attacks.protocols import title_of
from atent.errors import UserError
from atent.losses import margin
from atent.threat import Threat
from toys import THREATS, dual_norm, generator, linear, small_batch, small_network, two_class_linear

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
    with pytest.raises(UserError, match=rf"{title_of(attack).lower()} with threat {threat}; allowed: l"):
        attack(model, x, y, threat, generator())


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


def test_minimal_attacks_are_known_by_their_method() -> None:
    assert all(isinstance(attack, MinimalAttack) for attack, _ in MINIMAL)
    assert not isinstance(Pgd(), MinimalAttack)
