"""AWP, weights over examples and label smoothing, against their equations written down anew in double precision."""

import math
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.defenses import (
    DEFENSES,
    Atent,
    Defense,
    Fast,
    Gaussian,
    Mart,
    Mma,
    PgdAt,
    Search,
    SmoothAdv,
    Standard,
    Term,
    Trades,
    TradesSmooth,
)
from atent.defenses.cost import passes_per_image
from atent.errors import UserError
from atent.losses import cross_entropy, soft_maximum
from atent.network import counted
from atent.optim.optimizers import Entropy
from atent.recipe import load_recipe
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.loss_scale import NotFiniteError
from atent.training.step import Step, train_step
from short_runs import QUIET, tiny
from toys import THREATS, generator, small_batch, small_network

LR, SIZE = 0.1, 0.3
SEARCHING = [name for name, build in DEFENSES.items() if isinstance(build, type) and issubclass(build, Search)]
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


def kind(method: object) -> str:
    return type(method).__name__


def batch() -> tuple[nn.Sequential, Tensor, Tensor]:
    x, y = small_batch()
    return small_network(dropout=0).double().train(), x.double(), y


def step(defense: Defense, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, **added: Any) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return train_step(model, optimizer, defense, x, y, threat, generator(), **added).loss


@threats
@pytest.mark.parametrize("defense", [*(DEFENSES[name]() for name in SEARCHING), Atent(steps=3, share=0.5)], ids=kind)
def test_awp_applies_to_w_the_gradient_at_perturbed_weights(defense: Any, threat: Threat) -> None:
    model, x, y = batch()
    by_hand = deepcopy(model)
    found = defense.find(by_hand, x, y, threat, generator())

    def slopes(network: nn.Module) -> tuple[Tensor, ...]:
        loss = torch.stack([term.loss for term in defense.loss_at(network, x, y, found)]).sum(0).mean()
        return torch.autograd.grad(loss, list(network.parameters()))

    moved = deepcopy(by_hand)
    for weight, slope in zip(moved.parameters(), slopes(deepcopy(by_hand)), strict=True):
        if weight.dim() >= 2:
            length = math.sqrt(float((weight.detach() ** 2).sum())) / math.sqrt(float((slope**2).sum()))
            weight.data = weight.data + SIZE * length * slope
    expected = [w - LR * slope for w, slope in zip(by_hand.parameters(), slopes(moved), strict=True)]

    step(defense, model, x, y, threat, awp=SIZE)
    statistics = list(moved.buffers())  # they moved in the pass at the perturbed weights alone
    for ours, theirs in zip([*model.parameters(), *model.buffers()], [*expected, *statistics], strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-12)


@threats
def test_awp_raises_the_loss(threat: Threat) -> None:
    plain, raised = (step(PgdAt(), *batch(), threat, awp=size) for size in (0.0, 0.05))
    assert raised > plain + 1e-3


@pytest.mark.parametrize("defense", [PgdAt(), Trades()], ids=["pgd-at", "trades"])
def test_awp_costs_what_its_page_says(defense: Defense) -> None:
    page = (Path(__file__).parents[1] / "docs" / "additions.md").read_text(encoding="utf-8")
    name = {"PgdAt": "pgd-at", "Trades": "trades"}[type(defense).__name__]
    said = re.search(rf"`{name}` (?:has )?(\d+)(?: forward, | and )(\d+)", page)
    model, x, y = batch()
    with counted(model) as passes:
        step(defense, model, x, y, THREATS[0], awp=0.01)
    assert said
    assert (passes.forward, passes.backward) == (int(said[1]) * len(x), int(said[2]) * len(x))
    each = passes_per_image(defense, THREATS[0], awp=True)
    assert (each.forward, each.backward, each.to_weights) == tuple(
        count // len(x) for count in (passes.forward, passes.backward, passes.to_weights)
    )


@pytest.mark.parametrize("defense", [Standard(), Mma()], ids=["standard", "mma"])
def test_awp_is_refused_with_a_defense_that_is_not_in_two_parts(defense: Defense) -> None:
    name = type(defense).__name__
    with pytest.raises(UserError, match=f"awp needs a defense with the methods find and loss_at; the defense {name}"):
        step(defense, *batch(), THREATS[0], awp=0.01)
    with pytest.raises(UserError, match="awp needs a defense"):
        load_recipe("demo", {"defense": name.lower(), "awp": 0.01})


def test_weights_are_restored_where_the_perturbed_loss_is_not_finite() -> None:
    class Fragile(PgdAt):
        def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Any:
            (term,) = super().loss_at(model, x, y, found)
            changed = any(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
            yield Term(term.loss * (math.inf if changed else 1.0), term.logits, term.x_adv)

    model, x, y = batch()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(NotFiniteError):
        step(Fragile(), model, x, y, THREATS[0], awp=0.01)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_terms_are_checked_with_awp_too() -> None:
    class Bare(PgdAt):
        def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Any:
            yield from (term.loss for term in super().loss_at(model, x, y, found))

    with pytest.raises(UserError, match="the defense Bare yielded a tensor of shape"):
        step(Bare(), *batch(), THREATS[0], awp=0.01)


def test_awp_goes_with_entropy_sgd() -> None:
    weights = []
    for size in (0.0, 0.1):
        model, x, y = batch()
        train_step(model, Entropy()(model.parameters()), PgdAt(steps=2), x, y, THREATS[0], generator(), awp=size)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert 0 < (weights[1] - weights[0]).norm() < 0.5 * weights[0].norm()


@threats
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_gibbs_weighs_each_example_by_the_exponential_of_its_loss(scale: float, threat: Threat) -> None:
    model, x, y = batch()
    model.eval()[1].requires_grad_(False)  # BatchNorm stays in eval mode, so that each example's loss is its own
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [weight.detach().clone() for weight in weights]
    (term,) = PgdAt()(model, x, y, threat, generator())
    slopes = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in term.loss]
    powers = [math.exp(loss / scale) for loss in term.loss.tolist()]
    value = step(PgdAt(), model, x, y, threat, gibbs=scale)
    assert value == pytest.approx(scale * math.log(sum(powers) / len(powers)), rel=1e-9)
    for k, (weight, start) in enumerate(zip(weights, before, strict=True)):
        slope = sum(power / sum(powers) * own[k] for power, own in zip(powers, slopes, strict=True))
        torch.testing.assert_close(weight.detach(), start - LR * slope, rtol=1e-9, atol=1e-12)


def test_the_soft_maximum_lies_between_mean_and_maximum() -> None:
    losses = torch.tensor([0.1, 2.0, 0.7, 5.0], dtype=torch.float64)
    assert float(soft_maximum(losses, 1e6)) == pytest.approx(float(losses.mean()), abs=1e-5)
    assert float(soft_maximum(losses, 1e-3)) == pytest.approx(5.0, abs=2e-3)
    assert float(soft_maximum(1e6 * losses, 1e-3)) == pytest.approx(5e6)  # no overflow


@pytest.mark.parametrize("defense", [Mma(), Atent(steps=3, share=0.5)], ids=["mma", "atent"])
def test_gibbs_needs_one_term(defense: Defense) -> None:
    with pytest.raises(UserError, match="gibbs = 1 weighs the examples of one loss term; the defense yields several"):
        step(defense, *batch(), THREATS[0], gibbs=1.0)


def test_awp_begins_after_its_part_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def watched(*_: Any, awp: float, gibbs: float, **__: Any) -> Step:
        used.append((awp, gibbs))
        return Step(1.0, 1.0, 0, 0.0)

    monkeypatch.setattr("atent.training.fit.train_step", watched)
    recipe = tiny(epochs=2, awp=0.01, awp_start=0.5, gibbs=1.0)
    fit(recipe, tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), how=QUIET)
    half = len(used) // 2
    assert used == [(0.0, 1.0)] * half + [(0.01, 1.0)] * half


def test_smoothed_labels_are_a_mixture_of_the_label_and_all_classes() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    p = [math.exp(z) / sum(map(math.exp, (2.0, -1.0, 0.5))) for z in (2.0, -1.0, 0.5)]
    expected = -0.7 * math.log(p[1]) - 0.3 * sum(map(math.log, p)) / 3
    assert float(cross_entropy(logits, torch.tensor([1]), 0.3)) == pytest.approx(expected, rel=1e-12)


@threats
@pytest.mark.parametrize(
    ("build", "fields", "at"),
    [
        (Standard, {}, "x"),
        (Gaussian, {}, "point"),
        (Fast, {}, "point"),
        (PgdAt, {}, "point"),
        (Trades, {}, "x"),
        (Mart, {}, "point"),
        (Atent, {}, "point"),
        (Atent, {"steps": 3, "share": 0.5, "mode": "train"}, "point"),  # chain and loss would share a pass
        (TradesSmooth, {}, "first"),
        (SmoothAdv, {"draws": 1}, "sum"),
    ],
)
def test_label_smoothing_is_that_of_the_cross_entropy_which_is_minimized(
    build: Any, fields: dict[str, Any], at: str, threat: Threat
) -> None:
    """The points are the same, so the search does not see it, and the loss grows by torch's own difference."""
    model, x, y = batch()
    model[1].eval()
    plain, smooth = (
        list(build(**fields, label_smoothing=amount)(model, x, y, threat, generator())) for amount in (0.0, 0.2)
    )
    shares = build(**fields).shares() if build is Atent else [1.0]
    for before, after, share in zip(plain, smooth, shares[-len(plain) :], strict=True):
        assert torch.equal(before.x_adv, after.x_adv)
        seen = {"x": x, "point": after.x_adv}.get(at)
        if seen is None:
            found = build(**fields).find(model, x, y, threat, generator())
            seen = found[0] if at == "first" else found.sum(0)
        torch_loss = nn.functional.cross_entropy
        more = torch_loss(model(seen), y, reduction="none", label_smoothing=0.2)
        more = more - torch_loss(model(seen), y, reduction="none")
        torch.testing.assert_close(after.loss - before.loss, share * more, rtol=1e-9, atol=1e-12)
        assert more.abs().max() > 1e-3


@pytest.mark.parametrize("amount", [-0.1, 1.0])
def test_label_smoothing_is_a_share(amount: float) -> None:
    with pytest.raises(UserError, match="label_smoothing"):
        load_recipe("demo", {"defense.label_smoothing": amount})
