import math
import warnings
from pathlib import Path
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from atent.errors import ThreatWarning, UserError
from atent.evaluation.checks import Sample, check_attacks
from atent.inputs import check_points
from atent.methods import Start
from atent.storage.recipe_files import RECIPES
from atent.threat import TOLERANCE, Threat
from test_cli import atent
from toys import THREATS, UNBOXED, generator, linear

norms = st.sampled_from(["linf", "l2"])
radii = st.floats(0, 10, allow_nan=False)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e3, 1e20])


@pytest.mark.filterwarnings("ignore::atent.errors.ThreatWarning")
@settings(max_examples=200, deadline=None)
@given(norm=norms, eps=radii, seed=seeds, scale=scales)
def test_projection_lands_inside_and_leaves_inside_points_alone(norm: str, eps: float, seed: int, scale: float) -> None:
    threat = Threat.parse(f"{norm}:{eps}")
    x = torch.rand(3, 1, 4, 4, generator=generator(seed))
    wild = x + scale * torch.randn(3, 1, 4, 4, generator=generator(seed + 1))
    inside = threat.project(wild, x)
    check_points(inside, x, threat, "project")
    torch.testing.assert_close(threat.project(inside, x), inside, atol=TOLERANCE, rtol=0)


@pytest.mark.filterwarnings("ignore::atent.errors.ThreatWarning")
@settings(max_examples=100, deadline=None)
@given(norm=norms, eps=radii, seed=seeds, start=st.sampled_from(get_args(Start)))
def test_every_start_is_inside(norm: str, eps: float, seed: int, start: Start) -> None:
    threat = Threat.parse(f"{norm}:{eps}")
    x = torch.rand(3, 1, 4, 4, generator=generator(seed))
    box = threat.unboxed() if start == "unboxed" else threat
    check_points(threat.sample(x, generator(seed), start), x, box, start)


@pytest.mark.parametrize("start", get_args(Start))
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_radius_zero_is_x_itself(norm: str, start: Start) -> None:
    x = torch.rand(5, 1, 4, 4, generator=generator())
    threat = Threat.parse(f"{norm}:0")
    assert torch.equal(threat.sample(x, generator(), start), x)
    assert torch.equal(threat.project(x + 1, x), x)


def test_l2_projection_is_the_nearest_point() -> None:
    threat = Threat("l2", 1.0, UNBOXED)
    x, far = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(threat.project(far, x), torch.tensor([[0.6, 0.8]]))


def test_uniform_l2_start_fills_the_ball_evenly() -> None:
    threat = Threat("l2", 2.0, UNBOXED)
    x = torch.zeros(4000, 3)
    radius = threat.size(threat.sample(x, generator())) / 2
    assert kstest((radius**3).numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_unboxed_start_leaves_the_box_evenly(norm: Literal["linf", "l2"]) -> None:
    black = torch.zeros(2000, 1, 4, 4)
    below = (Threat(norm, 0.3).sample(black, generator(), "unboxed") < 0).float().mean()
    assert float(below) == pytest.approx(0.5, abs=0.02)
    assert (Threat(norm, 0.3).sample(black, generator(), "uniform") >= 0).all()


def test_corner_starts_are_on_the_boundary() -> None:
    x = torch.zeros(10, 1, 4, 4)
    for norm in ("linf", "l2"):
        threat = Threat(norm, 0.7, UNBOXED)
        delta = threat.sample(x, generator(), "corner")
        torch.testing.assert_close(threat.size(delta), torch.full((10,), 0.7))
    assert delta.abs().unique().numel() > 1  # l2: anywhere on the sphere
    assert Threat("linf", 0.7, UNBOXED).sample(x, generator(), "corner").abs().unique().numel() == 1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_near_starts_are_a_thousandth_away(norm: Literal["linf", "l2"]) -> None:
    delta = Threat(norm, 0.3, UNBOXED).sample(torch.zeros(100, 1, 10, 10), generator(), "near")
    assert float(delta.std()) == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-30])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_steepest_direction_attains_the_dual_norm(threat: Threat, scale: float) -> None:
    gradient = scale * torch.randn(4, 1, 5, 5, generator=generator())
    direction = threat.steepest(gradient)
    torch.testing.assert_close(threat.size(direction), torch.ones(4))
    gain = (gradient.double() * direction.double()).flatten(1).sum(1)
    dual = gradient.double().flatten(1).norm(p=1 if threat.norm == "linf" else 2, dim=1)
    torch.testing.assert_close(gain, dual, rtol=1e-5, atol=0)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_no_gradient_no_direction(threat: Threat) -> None:
    assert torch.equal(threat.steepest(torch.zeros(2, 1, 3, 3)), torch.zeros(2, 1, 3, 3))


def test_parse_reads_fractions() -> None:
    assert Threat.parse("linf:8/255") == Threat("linf", 8 / 255)
    assert Threat.parse("l2:0.5") == Threat("l2", 0.5)


@pytest.mark.parametrize("text", ["linf", "l1:0.3", "linf:", "l2:x", "linf:-0.1", "l2:inf", "linf:nan", "linf:1/0", ""])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(UserError, match="allowed"):
        Threat.parse(text)


def test_size_is_the_norm() -> None:
    delta = torch.tensor([[3.0, -4.0], [0.0, 1.0]])
    assert Threat("linf", 0.5).size(delta).tolist() == [4.0, 1.0]
    assert Threat("l2", 0.5).size(delta).tolist() == [5.0, 1.0]
    assert math.isclose(Threat("l2", 0.5).scaled(0.5).eps, 0.25)


@pytest.mark.parametrize(
    ("text", "meant"), [("linf:8", "linf:8/255"), ("linf:1", "linf:1/255"), ("l2:128", "l2:128/255")]
)
def test_a_vast_radius_is_doubted(text: str, meant: str) -> None:
    with pytest.warns(ThreatWarning, match=f"threat {text}: .* is {meant} meant") as told:
        threat = Threat.parse(text)
    assert len(told) == 1
    with pytest.warns(ThreatWarning, match=meant) as told:
        assert Threat(threat.norm, threat.eps) == threat
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("text", ["linf:0.99", "linf:8/255", "l2:128/255", "l2:5", "l2:10", "linf:0"])
def test_a_usual_radius_is_not_doubted(text: str) -> None:
    Threat.parse(text)  # a warning would be an error


def test_pixels_up_to_255_have_radii_to_match() -> None:
    Threat("linf", 8, (0.0, 255.0))
    Threat("l2", 128, (0.0, 255.0))
    with pytest.warns(ThreatWarning, match=r"\[0, 255\]"):
        Threat("linf", 255, (0.0, 255.0))


def test_what_we_make_of_a_threat_is_not_doubted() -> None:
    x = torch.rand(3, 3, 32, 32, generator=generator())
    with pytest.warns(ThreatWarning):
        vast = Threat.parse("linf:8")
    for threat in (vast, Threat("linf", 0.3)):
        made = [threat.unboxed(), threat.scaled(4), threat.with_radius(20), threat.with_radii(torch.full((3,), 2.0), x)]
        assert [one.eps for one in made] == [threat.eps, 4 * threat.eps, 20, 2]
        assert {one.norm for one in made} == {"linf"}
        assert [one.box == threat.box for one in made] == [False, True, True, True]
    assert vast == Threat.parse(vast)
    model = linear(torch.randn(3, 3 * 32 * 32, generator=generator()))
    sample = Sample(model, x, model(x).argmax(1), Threat("l2", 0.5), seed=0)
    list(check_attacks(sample))  # at a radius of half the box's diagonal, 27.7


def test_a_doubt_is_told_once_in_a_line_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (RECIPES / "demo.toml").read_text(encoding="utf-8")
    (tmp_path / "vast.toml").write_text(recipe.replace("linf:0.3", "linf:8"), encoding="utf-8")
    for _ in range(2):
        assert atent("show", tmp_path / "vast.toml") == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("warning: threat linf:8: ")
    assert atent("show", "demo") == 0
    assert capsys.readouterr().err == ""


def test_a_doubt_is_told_once_in_python() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            Threat.parse("linf:9")
    assert len(told) == 1


@pytest.mark.parametrize("box", [(1.0, 0.0), (0.0, 0.0), "ab", (0.0,), None])
def test_a_box_that_is_none_is_refused(box: object) -> None:
    with pytest.raises(UserError, match="threat box"):
        Threat("linf", 0.1, box)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("linf:8/255", "linf:8/255"),
        ("linf:0.031", "linf:0.031"),
        ("l2:1/3", "l2:1/3"),
        ("l2:0.50", "l2:0.50"),
        ("linf: 4/255 ", "linf:4/255"),
        ("linf:0.03137254901960784", "linf:8/255"),  # older rows
        ("l2:0.5019607843137255", "l2:128/255"),
        ("l2:0.12345678901234", "l2:0.12345678901234"),
    ],
)
def test_a_threat_is_written_as_it_was_given(given: str, shown: str) -> None:
    threat = Threat.parse(given)
    computed = Threat(threat.norm, threat.eps)
    assert str(threat) == shown
    assert Threat.parse(str(threat)) == Threat.parse(str(computed)) == computed
    assert hash(threat) == hash(computed)
    assert threat.exact == computed.exact
    assert str(threat.with_radius(0.25)) == f"{threat.norm}:0.25"
