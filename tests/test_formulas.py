"""Every defense's loss against its paper's equation, written down anew in double precision and plain probabilities."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from atent.defenses import DEFENSES, Defense, Fast, Mart, Mma, NFgsm, PgdAt, Standard, Term, Trades
from atent.losses import boosted_cross_entropy, divergence, soft_margin
from atent.methods import Start
from atent.threat import Threat
from toys import THREATS, dual_norm, generator, small_batch, small_network, two_class_linear

threats = pytest.mark.parametrize("threat", THREATS, ids=str)


def terms(defense: Defense, threat: Threat) -> tuple[nn.Module, Tensor, list[int], list[Term]]:
    """A batch of the small network in double precision, without dropout."""
    model = small_network(dropout=0).double().eval()
    x, y = small_batch()
    found = list(defense(model, x.double(), y, threat, generator()))
    return model, x.double(), y.tolist(), found


def probabilities(model: nn.Module, x: Tensor) -> list[list[float]]:
    with torch.no_grad():
        logits = model(x).tolist()
    return [[math.exp(z) / sum(map(math.exp, row)) for z in row] for row in logits]


def assert_losses(found: list[Term], expected: list[float]) -> None:
    total = torch.stack([term.loss for term in found]).sum(0)
    torch.testing.assert_close(total, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_standard_is_cross_entropy() -> None:
    model, x, y, found = terms(Standard(), THREATS[0])
    assert_losses(found, [-math.log(p[label]) for p, label in zip(probabilities(model, x), y, strict=True)])


def ascended(
    loss: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, threat: Threat, step: float, steps: int
) -> Tensor:
    """Projected ascent as a textbook writes it, one image at a time."""
    points = []
    for image, point in zip(x, start, strict=True):
        for _ in range(steps):
            point = point.clone().requires_grad_()
            (slope,) = torch.autograd.grad(loss(point[None]), point)
            with torch.no_grad():
                if threat.norm == "linf":
                    point = torch.minimum(
                        torch.maximum(point + step * slope.sign(), image - threat.eps), image + threat.eps
                    )
                else:
                    away = point + step * slope / (slope**2).sum().sqrt() - image
                    point = image + away * min(1.0, threat.eps / float((away**2).sum().sqrt()))
                point = point.clamp(0, 1)
        points.append(point.detach())
    return torch.stack(points)


@threats
@pytest.mark.parametrize(
    ("defense", "step", "steps"),
    [(Fast(), 1.25, 1), (Fast(start="unboxed"), 1.25, 1), (PgdAt(steps=3), 2.5 / 3, 3), (Mart(steps=3), 2 / 3, 3)],
    ids=["fast", "fast-unboxed", "pgd-at", "mart"],
)
def test_the_point_trained_at_ascends_cross_entropy(defense: Defense, step: float, steps: int, threat: Threat) -> None:
    """Wong et al. 2020: one step of 1.25 eps; Madry et al. 2018 and Wang et al. 2020: several."""
    model, x, y, found = terms(defense, threat)
    start = threat.sample(x, generator(), getattr(defense, "start", "uniform"))
    for k, label in enumerate(y):
        one = slice(k, k + 1)
        loss = partial(cross_entropy_of, model, label)
        expected = ascended(loss, x[one], start[one], threat, step * threat.eps, steps)
        torch.testing.assert_close(found[-1].x_adv[one], expected, rtol=0, atol=1e-9)


@threats
def test_n_fgsm_steps_one_radius_from_a_start_in_two(threat: Threat) -> None:
    """de Jorge et al. 2022, Algorithm 1: no projection; a step of eps along the sign (l2: the unit gradient)."""
    model, x, y, found = terms(NFgsm(), threat)
    start = Threat(threat.norm, 2 * threat.eps).sample(x, generator())
    expected = []
    for k, label in enumerate(y):
        point = start[k : k + 1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy_of(model, label, point), point)
        unit = slope.sign() if threat.norm == "linf" else slope / (slope**2).sum().sqrt()
        expected.append((point + threat.eps * unit).clamp(0, 1).detach())
    torch.testing.assert_close(found[0].x_adv, torch.cat(expected), rtol=0, atol=1e-9)
    assert (threat.size(found[0].x_adv - x) > threat.eps).any()
    at_point = probabilities(model, found[0].x_adv)
    assert_losses(found, [-math.log(p[label]) for p, label in zip(at_point, y, strict=True)])


@pytest.mark.parametrize(("start", "between"), [("uniform", 0.0), ("unboxed", 3 / 16)])
def test_black_pixels_end_between_the_borders_only_from_an_unboxed_start(start: Start, between: float) -> None:
    """x' = clip(u + 1.25 eps s), u uniform in [-eps, eps]: between 0 and eps where s = 1 and u < -.25 eps."""
    threat = Threat("linf", 0.3)
    x, y = torch.zeros(500, 1, 6, 6), torch.arange(500) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    (term,) = Fast(start=start)(model, x, y, threat, generator())
    inside = (term.x_adv > 1e-6) & (term.x_adv < threat.eps - 1e-6)
    assert float(inside.float().mean()) == pytest.approx(between, abs=0.01)


def cross_entropy_of(model: nn.Module, label: int, point: Tensor) -> Tensor:
    return -torch.softmax(model(point)[0], 0)[label].log()


@threats
@pytest.mark.parametrize("defense", [Fast(), PgdAt(steps=3)], ids=["fast", "pgd-at"])
def test_cross_entropy_at_the_point_found(defense: Defense, threat: Threat) -> None:
    model, _, y, found = terms(defense, threat)
    at_point = probabilities(model, found[0].x_adv)
    assert_losses(found, [-math.log(p[label]) for p, label in zip(at_point, y, strict=True)])


@threats
def test_trades(threat: Threat) -> None:
    """Zhang et al. 2019: CE(f(x), y) + beta KL(f(x) || f(x'))."""
    model, x, y, found = terms(Trades(beta=4.5), threat)
    clean, adversarial = probabilities(model, x), probabilities(model, found[0].x_adv)
    assert_losses(
        found, [-math.log(p[label]) + 4.5 * kl(p, q) for p, q, label in zip(clean, adversarial, y, strict=True)]
    )


@threats
def test_mart(threat: Threat) -> None:
    """Wang et al. 2020: BCE(p(x'), y) + beta KL(p(x) || p(x')) (1 - p_y(x))."""
    model, x, y, found = terms(Mart(beta=6), threat)
    expected = []
    for p, q, label in zip(probabilities(model, x), probabilities(model, found[0].x_adv), y, strict=True):
        wrong = max(value for k, value in enumerate(q) if k != label)
        boosted = -math.log(q[label]) - math.log(1 - wrong)
        expected.append(boosted + 6 * kl(p, q) * (1 - p[label]))
    assert_losses(found, expected)


@threats
def test_the_point_of_trades_has_a_higher_divergence_than_its_start(threat: Threat) -> None:
    model, x, _, found = terms(Trades(), threat)
    start = threat.sample(x, generator(), "near")
    with torch.no_grad():
        at_x = model(x)
        assert (divergence(model(found[0].x_adv), of=at_x) > 10 * divergence(model(start), of=at_x)).all()


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_mma_trains_at_the_exact_boundary_of_a_linear_network(threat: Threat) -> None:
    """Two classes with logits 0 and w.x + b: the margin of x is |w.x + b| / |w|, in the dual norm."""
    slope = torch.randn(36, generator=generator(3))
    model = two_class_linear(slope, bias=float(-0.5 * slope.sum()))
    away = torch.linspace(-2.5, 2.5, 40)[torch.randperm(40, generator=generator())] * threat.eps
    x = 0.5 + away.view(-1, 1, 1, 1) * threat.steepest(slope.view(1, 1, 6, 6))
    y = (away > 0).long()
    y[:5] = 1 - y[:5]  # five are wrong
    exact = (model(x)[:, 1].detach() / dual_norm(slope, threat)).abs()
    torch.testing.assert_close(exact, away.abs())
    inside = exact < 1.5 * threat.eps
    memory = torch.full((40,), -1.0)

    first, second = Mma(start="center")(model, x, y, threat, generator(), memory=memory)

    at_x, at_boundary = torch.nn.functional.cross_entropy(model(x), y, reduction="none"), math.log(2)
    torch.testing.assert_close(first.loss, at_x / 3)
    torch.testing.assert_close(second.loss[:5], at_x[:5] * 2 / 3)
    assert torch.equal(second.x_adv[:5], x[:5])
    precision = 1.05 * 1.5 * threat.eps / 2**10
    near = inside & (torch.arange(40) >= 5)
    assert ((memory - exact)[near] >= -1e-6).all()  # the first wrong point is just beyond the boundary
    assert ((memory - exact)[near] <= precision + 1e-6).all()
    torch.testing.assert_close(second.loss[near], torch.full_like(memory[near], at_boundary * 2 / 3), atol=0.02, rtol=0)
    assert (second.loss[5:][~inside[5:]] == 0).all()
    assert (memory[:5] == 0).all()  # wrong ones have no margin


@threats
def test_mma(threat: Threat) -> None:
    """Ding et al. 2020: a third of the loss at x, two thirds at the boundary that PGD on the soft margin points to."""
    model = small_network(dropout=0).double().eval()
    x = small_batch()[0].double()
    y = model(x).argmax(1)
    y[:2] = (y[:2] + 1) % 3  # two are wrong
    remembered = [0.9 * threat.eps, 0.5 * threat.eps] * 4
    memory = torch.tensor(remembered, dtype=torch.float64)
    found = list(Mma(steps=3, hinge=2.0, start="center")(model, x, y, threat, generator(), memory=memory))

    def changed(image: Tensor, by: Tensor) -> list[float]:
        return probabilities(model, (image + by).clamp(0, 1)[None])[0]

    expected, margins = [], []
    for image, label, radius in zip(x, y.tolist(), remembered, strict=True):
        ball, one = Threat(threat.norm, radius), image[None]
        point = ascended(partial(soft_margin_of, model, label), one, one, ball, 2.5 / 3 * radius, 3)
        away = point[0] - image
        unit = away / (away.abs().max() if threat.norm == "linf" else (away**2).sum().sqrt())
        near, far = 0.0, 1.05 * 2 * threat.eps
        for _ in range(10):
            middle = (near + far) / 2
            answers = changed(image, middle * unit)
            near, far = (near, middle) if answers[label] < max(answers) else (middle, far)
        at_x, at_boundary = changed(image, 0 * unit), changed(image, far * unit)
        right = at_x[label] == max(at_x)
        hinged = -math.log((at_boundary if right else at_x)[label]) * (far < 2 * threat.eps or not right)
        expected.append(-math.log(at_x[label]) / 3 + 2 / 3 * hinged)
        margins.append(far if right else 0.0)
    assert_losses(found, expected)
    torch.testing.assert_close(memory, torch.tensor(margins, dtype=torch.float64))
    kinds = {"wrong" if margin == 0 else "near" if margin < 2 * threat.eps else "far" for margin in margins}
    assert kinds >= {"wrong", "near"}


def soft_margin_of(model: nn.Module, label: int, point: Tensor) -> Tensor:
    return soft(model(point)[0], label)


def soft(logits: Tensor, label: int) -> Tensor:
    """The log of the sum of the wrong classes' exponentials, minus the right logit."""
    wrong = torch.cat([logits[:label], logits[label + 1 :]])
    return wrong.exp().sum().log() - logits[label]


def test_the_soft_margin_is_its_papers() -> None:
    logits = torch.randn(9, 4, generator=generator(), dtype=torch.float64) * 3
    y = torch.arange(9) % 4
    expected = torch.stack([soft(row, label) for row, label in zip(logits, y.tolist(), strict=True)])
    torch.testing.assert_close(soft_margin(logits, y), expected)


@threats
def test_mma_searches_in_the_ball_of_the_margin_it_remembers(threat: Threat) -> None:
    """The random start lies in a ball of the remembered margin, or of the least or the largest radius allowed."""
    model, (x, y) = small_network(dropout=0).eval(), small_batch()
    radii = []

    class Probe(nn.Module):
        def forward(self, point: Tensor) -> Tensor:
            if point.requires_grad:
                radii.append(threat.size(point.detach() - x))
            logits: Tensor = model(point)
            return logits

    memory = torch.linspace(0, 2, len(x)) * threat.eps
    list(Mma(steps=1, start="corner")(Probe(), x, y, Threat(threat.norm, threat.eps), generator(), memory=memory))
    expected = torch.linspace(0, 2, len(x)).clamp(1 / 3, 1.05 * 1.5) * threat.eps
    assert (radii[0] <= expected + 1e-6).all()
    assert (radii[0] >= 0.5 * expected).all()  # the pixel box takes some of it


def everywhere_huge(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], requires_grad=True)
    value = loss(logits, torch.tensor([1, 0, 2]))
    assert value.isfinite().all()
    value.sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize(
    "loss",
    [soft_margin, boosted_cross_entropy, lambda logits, _: divergence(logits, of=-logits)],
    ids=["soft margin", "boosted", "divergence"],
)
def test_gradients_stay_finite_with_huge_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert everywhere_huge(loss).isfinite().all()


@threats
@pytest.mark.parametrize("build", DEFENSES.values(), ids=DEFENSES.keys())
def test_training_gradients_stay_finite_with_huge_logits(build: Callable[..., Defense], threat: Threat) -> None:
    model, (x, y) = small_network(dropout=0).train(), small_batch()
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.mul_(1e5)
        assert float(model(x).abs().max()) > 1e4
    for term in build()(model, x, y, threat, generator()):
        term.loss.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
