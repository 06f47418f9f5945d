"""What ATENT minimizes (docs/atent.md, *The principle*), by quadrature; and where its loss comes from."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from atent.ascent import Chain, ascend, last
from atent.data.dataset import load
from atent.defenses import Atent
from atent.models import MODELS, Shape
from atent.models.weights import load_weights
from atent.threat import Threat
from toys import SHARED, UNBOXED, generator, needs_shared

X, W, PULL = 0.3, 1.0, 1.0  # the pull outweighs the curvature of the loss, w^2 / 4: one mode, and chains that mix soon
GRID = torch.linspace(-30, 30, 60_001, dtype=torch.float64)


def loss(w: float, point: Tensor = GRID) -> Tensor:
    """Cross-entropy of class 0 with the logits (0, -w x')."""
    return nn.functional.softplus(-w * point)


def slope(point: Tensor, w: float = W) -> Tensor:
    """The derivative of `loss` by w."""
    return -point * torch.sigmoid(-w * point)


def exponent(b: float, w: float = W, pull: float = PULL) -> Tensor:
    return b * (loss(w) - pull / 2 * (GRID - X) ** 2)


def free_energy(b: float, w: float = W) -> float:
    return float((torch.logsumexp(exponent(b, w), 0) + math.log(float(GRID[1] - GRID[0]))) / b)


def gibbs_mean(values: Tensor, b: float, w: float = W, pull: float = PULL) -> float:
    return float((torch.softmax(exponent(b, w, pull), 0) * values).sum())


def by_w(function: Callable[[float], float], step: float = 1e-5) -> float:
    """The central difference of a function of w."""
    return (function(W + step) - function(W - step)) / (2 * step)


@pytest.mark.parametrize("b", [0.5, 2.0, 20.0])
def test_the_mean_gradient_over_the_gibbs_law_is_that_of_the_free_energy(b: float) -> None:
    assert gibbs_mean(slope(GRID), b) == pytest.approx(by_w(lambda w: free_energy(b, w)), rel=1e-6)


def test_the_data_entropy_loss_has_another_gradient_and_not_the_appendixs() -> None:
    right = by_w(lambda w: gibbs_mean(loss(w), 1, w))
    of_law = gibbs_mean(slope(GRID), 1)
    covariance = gibbs_mean(slope(GRID) * loss(W), 1) - of_law * gibbs_mean(loss(W), 1)
    assert of_law + covariance == pytest.approx(right, rel=1e-6)
    assert gibbs_mean(slope(GRID) * (loss(W) + 1), 1) != pytest.approx(right, rel=0.1)


def test_the_free_energy_goes_from_gaussian_noise_to_the_worst_penalized_point() -> None:
    sigma, b = 0.5, 1e-4
    normal = torch.softmax(-((GRID - X) ** 2) / (2 * sigma**2), 0)
    assert gibbs_mean(slope(GRID), b, pull=1 / (b * sigma**2)) == pytest.approx(
        float((normal * slope(GRID)).sum()), rel=1e-3
    )
    worst = GRID[exponent(1).argmax()]
    assert gibbs_mean(slope(GRID), 1e4) == pytest.approx(float(slope(worst)), rel=1e-3)


class TwoPixels:
    """The same statements for two pixels and a loss that does not separate: softplus(-w_1 tanh(x_1 x_2) - w_2 x_2)."""

    axis = torch.linspace(-9, 9, 361, dtype=torch.float64)
    one, two = torch.meshgrid(axis, axis, indexing="ij")
    features = torch.stack([(one * two).tanh(), two])
    penalty = ((one - 0.4) ** 2 + (two + 0.2) ** 2) / 2
    w = torch.tensor([1.5, 0.7], dtype=torch.float64)

    @classmethod
    def loss(cls, w: Tensor) -> Tensor:
        return nn.functional.softplus(-torch.tensordot(w, cls.features, 1))

    @classmethod
    def mean(cls, values: Tensor, b: float, w: Tensor, pull: float = 1.0) -> Tensor:
        """The mean of values of shape (..., grid) over the Gibbs law."""
        law = (b * (cls.loss(w) - pull * cls.penalty)).flatten().softmax(0)
        return values.flatten(-2) @ law

    @classmethod
    def slope(cls) -> Tensor:
        """The gradient of `loss` by w, in closed form."""
        return -cls.features * torch.sigmoid(-torch.tensordot(cls.w, cls.features, 1))

    @classmethod
    def by_w(cls, function: Callable[[Tensor], Tensor], step: float = 1e-5) -> Tensor:
        sides = [function(cls.w + step * unit) - function(cls.w - step * unit) for unit in torch.eye(2).double()]
        return torch.stack(sides) / (2 * step)


@pytest.mark.parametrize("b", [0.2, 1.0, 10.0])
def test_in_two_dimensions_too(b: float) -> None:
    plane = TwoPixels

    def free_energy(w: Tensor) -> Tensor:
        return (b * (plane.loss(w) - plane.penalty)).flatten().logsumexp(0) / b

    slope, loss = plane.slope(), plane.loss(plane.w)
    of_law = plane.mean(slope, b, plane.w)
    torch.testing.assert_close(of_law, plane.by_w(free_energy), rtol=1e-6, atol=1e-9)
    covariance = plane.mean(slope * loss, b, plane.w) - of_law * plane.mean(loss, b, plane.w)
    data_entropy = plane.by_w(lambda w: plane.mean(plane.loss(w), b, w))
    torch.testing.assert_close(of_law + b * covariance, data_entropy, rtol=1e-6, atol=1e-9)


def test_both_limits_of_the_dial_in_two_dimensions() -> None:
    plane, sigma, b = TwoPixels, 0.5, 1e-4
    slope = plane.slope()
    normal = (-plane.penalty / sigma**2).flatten().softmax(0)
    noisy = plane.mean(slope, b, plane.w, pull=1 / (b * sigma**2))
    torch.testing.assert_close(noisy, slope.flatten(1) @ normal, rtol=1e-3, atol=0)
    worst = slope.flatten(1)[:, (plane.loss(plane.w) - plane.penalty).argmax()]
    torch.testing.assert_close(plane.mean(slope, 1e5, plane.w), worst, rtol=1e-3, atol=0)


def test_inside_a_ball_the_dial_goes_from_uniform_noise_to_the_worst_point() -> None:
    ball = GRID[(GRID - X).abs() <= 0.8]
    for b, expected in ((1e-6, slope(ball).mean()), (1e5, slope(ball[loss(W, ball).argmax()]))):
        law = torch.softmax(b * loss(W, ball), 0)
        assert float((law * slope(ball)).sum()) == pytest.approx(float(expected), rel=1e-3)


def ends(objective: Callable[[Tensor], Tensor], x: Tensor, b: float) -> Tensor:
    """The last points of raw chains at temperature 1 / b, each 8 times as long as the pull takes to forget a start."""
    free = Threat("l2", 1.0, UNBOXED)
    chain: Chain = {"step": 0.04, "temperature": 1 / b, "pull": PULL, "direction": "raw", "project": "never"}
    chain["start"] = "center"
    return last(ascend(objective, x, free, steps=200, generator=generator(), **chain)).double()


def distance(samples: Tensor, grid: Tensor, law: Tensor) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the distribution functions."""
    at, share = np.cumsum(law.numpy()), float(grid[1] - grid[0])
    return float(kstest(samples.numpy(), lambda x: np.interp(x, grid.numpy() + share / 2, at)).statistic)


TEMPERATURES = pytest.mark.parametrize("b", [0.25, 1.0, 10.0])
# Of 20,000 samples of the law itself the distance exceeds .012 in 1 of 100 cases; the steps of .04 add about .003.
NEAR = 0.016


@TEMPERATURES
def test_the_ends_of_a_chain_have_the_gibbs_law(b: float) -> None:
    found = ends(lambda point: nn.functional.softplus(-W * point[:, 0]), torch.full((20_000, 1), X), b)[:, 0]
    near, other = (distance(found, GRID, torch.softmax(exponent(one), 0)) for one in (b, 1.3 * b))
    assert near < NEAR < other


@TEMPERATURES
def test_the_ends_of_a_chain_have_the_gibbs_law_in_two_dimensions(b: float) -> None:
    plane = TwoPixels
    w = plane.w.float()

    def objective(point: Tensor) -> Tensor:
        one, two = point.unbind(1)
        return nn.functional.softplus(-w[0] * (one * two).tanh() - w[1] * two)

    found = ends(objective, torch.tensor([0.4, -0.2]).expand(20_000, 2).contiguous(), b)
    law = (b * (plane.loss(plane.w) - plane.penalty)).flatten().softmax(0).unflatten(0, plane.one.shape)
    for k in (0, 1):
        assert distance(found[:, k], plane.axis, law.sum(1 - k)) < NEAR
    product = (law * plane.one * plane.two).sum()
    spread = ((law * (plane.one * plane.two) ** 2).sum() - product**2).sqrt()
    assert float(found.prod(1).mean()) == pytest.approx(float(product), abs=5 * float(spread) / 20_000**0.5 + 0.02 / b)


class OnePixel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(W))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x), -self.w * x], 1)


@pytest.mark.parametrize("b", [0.5, 4.0])
def test_the_weight_gradient_of_atent_at_temperature_1_over_b_is_that_of_the_free_energy(b: float) -> None:
    """The last samples alone, raw drift, never projected: their plain mean."""
    model, count = OnePixel(), 40_000
    defense = Atent(
        steps=150, step=0.04, temperature=1 / b, pull=PULL, start="center", direction="raw", project="never"
    )
    threat, x = Threat("l2", 1.0, UNBOXED), torch.full((count, 1), X)
    for term in defense(model, x, torch.zeros(count, dtype=torch.long), threat, generator()):
        term.loss.mean().backward()
    assert model.w.grad is not None
    assert float(model.w.grad) == pytest.approx(by_w(lambda w: free_energy(b, w)), abs=0.02)


@needs_shared
def test_projected_at_the_last_step_the_moving_average_takes_its_loss_from_outside_the_ball(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`scripts/along_the_chain.py` on the TRADES authors' network; docs/atent.md quotes it for 1,000 images."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    from along_the_chain import THREAT, along

    model = MODELS["small-cnn"](Shape((1, 28, 28), 10)).eval()
    load_weights(model, SHARED / "weights" / "trades-mnist-smallcnn.pt")
    images = load("mnist", "train", SHARED / "data").take(slice(60))
    _, outside, end = along(Atent(noise=1e-3, share=0.9, project="last"), model, images, THREAT)
    assert (outside.k, end.k) == (9, 10)
    assert outside.size > 0.75
    assert end.size <= 0.3 + 1e-6
    assert outside.part > 4 * end.part
    _, before, end = along(Atent(noise=1e-3, share=0.9, project="every"), model, images, THREAT)
    assert before.size <= 0.3 + 1e-6
    assert before.part < 0.2 * end.part
