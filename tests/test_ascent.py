import math

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from atent.ascent import Points, ascend, auto_pull, input_gradient, radius_after
from atent.errors import UserError
from atent.threat import Threat
from toys import THREATS, UNBOXED, generator, small_batch, small_network

FREE = Threat("l2", 1.0, UNBOXED)


@pytest.mark.parametrize(
    ("pull", "step", "scale", "variance"),
    [
        (2.0, 0.1, {"noise": 1.0}, 1),
        (0.5, 0.5, {"noise": 0.3}, 0.09),
        (4.0, 0.01, {"noise": 1.0}, 1),
        (2.0, 0.1, {"temperature": 0.04}, 0.04),
        (2.0, 0.2, {"temperature": 1.0}, 1),
        (1.0, 0.1, {"temperature": 9.0}, 9),
    ],
)
def test_raw_chain_has_its_exact_gaussian_law(
    pull: float, step: float, scale: dict[str, float], variance: float
) -> None:
    """Linear loss g.x: after K steps mean x + g/pull (1 - q^K), variance v (1 - q^2K), q = 1 - step pull.

    v = T / (pull (1 - step pull / 2)): the temperature T, or noise^2.
    """
    slope, x = torch.tensor([1.0, -0.5]), torch.full((20_000, 2), 0.3)
    steps = math.ceil(8 / (step * pull))  # q^K below e^-8: stationary
    *_, last = ascend(
        lambda point: point @ slope,
        x,
        FREE,
        steps=steps,
        step=step,
        start="center",
        pull=pull,
        direction="raw",
        project="never",
        generator=generator(),
        **scale,
    )
    variance /= pull * (1 - step * pull / 2)
    samples = last.double()
    mean = x[0].double() + slope.double() / pull
    five_sigma = 5 * math.sqrt(variance / len(x))
    torch.testing.assert_close(samples.mean(0), mean, atol=five_sigma + 1e-3 / pull, rtol=0)
    torch.testing.assert_close(samples.var(0), torch.full((2,), variance).double(), rtol=0.05, atol=0)
    standard = (samples - mean) / math.sqrt(variance)
    assert kstest(standard[:, 0].numpy(), "norm").pvalue > 1e-4
    assert abs(torch.corrcoef(samples.T)[0, 1]) < 0.04


@pytest.mark.parametrize("step", [0.02, 0.5])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_noise_of_steepest_steps_is_measured_in_steps(norm: str, temperature: float, step: float) -> None:
    """Linear loss: after K steps x + K step d + noise of deviation sqrt(K) T step a pixel (l2: over sqrt(d))."""
    threat, steps, dimension = Threat(norm, 1.0, UNBOXED), 3, 50  # type: ignore[arg-type]
    slope, x = torch.linspace(-1, 2, dimension), torch.zeros(400, dimension)
    *_, last = ascend(
        lambda point: point @ slope,
        x,
        threat,
        steps=steps,
        step=step,
        start="center",
        temperature=temperature,
        project="never",
        generator=generator(),
    )
    unit = slope.sign() if norm == "linf" else slope / slope.norm()
    pixel = temperature * step * math.sqrt(steps) / (1 if norm == "linf" else math.sqrt(dimension))
    assert kstest(((last - steps * step * unit) / pixel).flatten().numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize(("steps", "decay"), [(1, 0.1), (2, 0.5), (5, 0.125), (10, 0.05), (7, 1.0)])
def test_steps_shrink_by_a_constant_factor_to_a_share_of_the_first(steps: int, decay: float) -> None:
    """Linear loss, without the ball: the lengths are a geometric sequence, and they sum up to the reach."""
    slope, x, eps = torch.tensor([1.0, -2.0, 2.0]), torch.zeros(1, 3), 0.3
    threat = Threat("l2", eps, UNBOXED)
    points = ascend(
        lambda point: point @ slope,
        x,
        threat,
        steps=steps,
        reach=4.0,
        decay=decay,
        start="center",
        project="never",
        generator=generator(),
    )
    path = torch.stack([x, *points])
    lengths = (path[1:] - path[:-1]).norm(dim=2).flatten().double()
    assert lengths.sum().item() == pytest.approx(4 * eps)
    if steps > 1:
        assert (lengths[-1] / lengths[0]).item() == pytest.approx(decay, rel=1e-4)
        torch.testing.assert_close(
            lengths[1:] / lengths[:-1], (lengths[1] / lengths[0]).expand(steps - 1), rtol=1e-4, atol=0
        )


def test_the_noise_shrinks_with_the_steps() -> None:
    """Flat loss: the noise of each step has the deviation T times that step, so its squares add up."""
    x, threat = torch.zeros(400, 50), Threat("linf", 1.0, UNBOXED)
    settings = {"steps": 4, "reach": 4.0, "decay": 0.125, "temperature": 0.5, "start": "center", "project": "never"}
    *_, last = ascend(lambda point: 0 * point.sum(1), x, threat, **settings, generator=generator())  # type: ignore[arg-type]
    steps = [4 / 1.875, 2 / 1.875, 1 / 1.875, 0.5 / 1.875]  # four, halving, with the sum 4
    pixel = 0.5 * math.sqrt(sum(step**2 for step in steps))
    assert kstest((last / pixel).flatten().numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5, math.nan])
def test_a_decay_that_is_no_share_is_refused(decay: float) -> None:
    with pytest.raises(UserError, match=r"decay .*; allowed: above 0, at most 1"):
        next(ascend(lambda point: point.sum(1), torch.zeros(1, 2), FREE, steps=2, decay=decay, generator=generator()))


def test_noise_and_temperature_are_refused_together() -> None:
    both = {"steps": 1, "noise": 0.1, "temperature": 0.5}
    with pytest.raises(UserError, match=r"noise 0.1 and temperature 0.5; allowed: one of them"):
        next(ascend(lambda point: point.sum(1), torch.zeros(1, 2), FREE, **both, generator=generator()))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_start_is_uniform_in_a_ball_of_so_many_radii(norm: str, scale: float) -> None:
    """A flat objective never moves from its start. The size of a uniform point, over the radius, has the law u^d."""
    threat, x = Threat(norm, 0.1), torch.full((4000, 3), 0.5)  # type: ignore[arg-type]
    flat = ascend(
        lambda point: 0 * point.sum(1), x, threat, steps=1, start_scale=scale, project="never", generator=generator()
    )
    sizes = threat.size(next(flat) - x)
    if scale == 0:
        assert not sizes.any()
    else:
        assert kstest((sizes / (scale * threat.eps)).numpy() ** 3, "uniform").pvalue > 1e-4


def test_own_radii_scale_with_the_start() -> None:
    x = torch.full((2, 3), 0.5)
    ball = Threat("l2", 0.1).with_radii(torch.tensor([0.02, 0.1]), x)
    start = ball.scaled(2.0).sample(x, generator(), "corner")
    torch.testing.assert_close(ball.size(start - x), torch.tensor([0.04, 0.2]))


def test_potential_is_smooth_and_dissipative_as_the_papers_lemma_says() -> None:
    """F(u) = gamma/2 |x-u|^2 - L(u) with L(u) = a log cosh(w.u): Lipschitz a|w|, smooth a|w|^2."""
    gamma, a = 0.7, 1.3
    source = generator(3)
    w, x = torch.randn(6, generator=source).double(), torch.randn(6, generator=source).double()
    lipschitz, beta = a * w.norm(), a * w.norm() ** 2

    def gradient(points: Tensor) -> Tensor:
        return -input_gradient(lambda u: a * (u @ w).cosh().log() - gamma / 2 * ((x - u) ** 2).sum(1), points)

    u, v = (5 * torch.randn(500, 6, generator=source).double() for _ in range(2))
    smooth = (gradient(u) - gradient(v)).norm(dim=1) / (u - v).norm(dim=1)
    assert smooth.max() <= beta + gamma + 1e-9
    bound = gamma / 4 * u.norm(dim=1) ** 2 - (lipschitz**2 / gamma + gamma / 2 * x.norm() ** 2)
    assert ((gradient(u) * u).sum(1) >= bound).all()


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_pgd_reaches_the_worst_case_of_a_linear_loss(threat: Threat) -> None:
    slope = torch.randn(25, generator=generator(4))
    x = torch.full((3, 25), 0.5)  # in the middle of the box, which does not bind
    *_, last = ascend(lambda point: point @ slope, x, threat, steps=40, reach=20, generator=generator())
    dual = slope.norm(p=1 if threat.norm == "linf" else 2)
    torch.testing.assert_close(last @ slope, x @ slope + threat.eps * dual, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("eps", "steps", "step"), [(2.0, 40, 0.25), (2.0, 10, 0.5), (0.5, 10, 0.1), (1.0, 7, 1.0)])
def test_auto_pull_ends_the_chain_at_the_radius(eps: float, steps: int, step: float) -> None:
    threat, x, slope = Threat("l2", eps, UNBOXED), torch.zeros(1, 9), torch.ones(9)
    *_, last = ascend(
        lambda point: point @ slope,
        x,
        threat,
        steps=steps,
        step=step,
        start="center",
        pull="auto",
        project="never",
        generator=generator(),
    )
    assert float(threat.size(last - x)) == pytest.approx(eps, rel=1e-4)


def test_auto_pull_corrects_the_papers_mnist_setting() -> None:
    assert radius_after(0.05, 40, 0.25) == pytest.approx(7.9, abs=0.05)
    assert auto_pull(2.0, 40, 0.25) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("eps", "steps", "step"), [(2.0, 4, 0.25), (0.1, 10, 0.25)])
def test_auto_pull_refuses_what_it_cannot_reach(eps: float, steps: int, step: float) -> None:
    with pytest.raises(UserError, match="step <= eps <= steps"):
        auto_pull(eps, steps, step)


@pytest.mark.parametrize("direction", ["steepest", "raw"])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_an_example_moves_the_same_alone_and_in_a_batch(threat: Threat, direction: str) -> None:
    model = small_network().eval()
    x, _ = small_batch()

    def last(x: Tensor) -> Tensor:
        *_, point = ascend(
            lambda point: model(point).logsumexp(1),
            x,
            threat,
            steps=5,
            step=0.02,
            start="center",
            direction=direction,  # type: ignore[arg-type]
            generator=generator(),
        )
        return point

    torch.testing.assert_close(last(x)[3:4], last(x[3:4]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("project", "inside"), [("every", 6), ("last", 1), ("never", 0)])
def test_projection_happens_when_it_is_said(project: str, inside: int) -> None:
    threat, x, slope = Threat("l2", 0.1, UNBOXED), torch.zeros(1, 4), torch.ones(4)
    points = ascend(
        lambda point: point @ slope,
        x,
        threat,
        steps=6,
        step=1.0,
        project=project,  # type: ignore[arg-type]
        generator=generator(),
    )
    assert sum(float(threat.size(point - x)) <= threat.eps + 1e-6 for point in points) == inside


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_a_takers_backward_pass_is_not_run_again(threat: Threat) -> None:
    weights = torch.randn(36, generator=generator(5))
    x, _ = small_batch()
    passes = 0

    def objective(point: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return (point.flatten(1) @ weights).sin()

    settings = {"steps": 6, "generator": generator(), "noise": 0.01}
    own = list(ascend(objective, x, threat, **settings))  # type: ignore[arg-type]
    assert passes == 6
    passes = 0
    shared = []
    for point in ascend(objective, x, threat, **{**settings, "generator": generator()}):  # type: ignore[arg-type]
        shared.append(point.detach().clone())
        point.requires_grad_()
        (0.01 * (point.flatten(1) @ weights).sin().mean()).backward()
    assert passes == 1  # at the start; every later gradient came from the taker
    for mine, theirs in zip(own, shared, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_examples_that_are_left_out_do_not_change_the_others(threat: Threat) -> None:
    model = small_network().eval()
    x = torch.rand(8, 3, 6, 6, generator=generator(2)).to(memory_format=torch.channels_last)

    def points(x: Tensor) -> Points:
        return ascend(lambda point: model(point[:, :1]).logsumexp(1), x, threat, steps=4, generator=generator())

    whole = list(points(x))
    keep = torch.arange(8) % 3 > 0
    chain = points(x)
    assert torch.equal(next(chain), whole[0])
    assert torch.equal(chain.send(keep), whole[0][keep])
    for after, before in zip(chain, whole[1:], strict=True):
        assert after.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(after, before[keep], atol=1e-6, rtol=0)
