"""Each example is short, runs as a script, and does what its first line promises."""

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an example as `python examples/NAME.py` does; its names."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name: runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_under_forty_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40


def test_own_loop_trains_a_robust_network(run: Any) -> None:
    names = run("own_loop")
    assert names["clean"] > 0.8
    assert names["robust"] > 0.45  # the plainly trained network of own_attack has less than .3


def test_own_defense_trains_by_recipe(run: Any) -> None:
    names = run("own_defense")
    assert names["clean"] > 0.8


def test_own_attack_stays_in_the_ball_and_misleads(run: Any) -> None:
    names = run("own_attack")
    x, x_adv = names["x"], names["x_adv"]
    assert 0.09 < (x_adv - x).abs().max() <= 0.1 + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert names["robust"] < 0.3 < 0.8 < names["clean"]


def test_certify_proves_radii_within_reach(run: Any) -> None:
    names = run("certify")
    certificates, settings = names["certificates"], names["settings"]
    assert sum(names["correct"]) > len(certificates) / 2
    assert all(0 <= one.radius <= settings.largest_radius for one in certificates)
