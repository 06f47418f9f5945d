"""Each example is short, runs as a script, and does what its first line promises."""

import re
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


def test_every_example_is_run_by_a_test() -> None:
    """Except the module that the others import."""
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'run("{path.stem}")' not in source] == ["elsewhere"]


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


@pytest.mark.parametrize("name", ["evaluate", "certify_tensors", "train"])
def test_one_call_takes_fifteen_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 15


def test_evaluate_gives_a_verdict(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = run("evaluate")["result"]
    first = capsys.readouterr().out.splitlines()[0]
    assert first == repr(result)
    robust, clean = r"[\d.]+ % robust \[[\d.]+, [\d.]+\]", r"[\d.]+ % clean"
    assert re.fullmatch(rf"strong, linf:0\.2, 200 test images: {robust}, {clean}; checks: silent", first)
    assert result.robust < 0.3 < 0.8 < result.clean  # trained without attacks


def test_certify_tensors_gives_a_verdict(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = run("certify_tensors")["result"]
    shares = [rate.value for rate in result.certified.values()]
    assert 0.9 > shares[-1] > 0
    assert shares == sorted(shares, reverse=True)
    assert capsys.readouterr().out.startswith("certified, sigma 0.25, 60 test images: ")


def test_train_makes_the_network_more_robust(run: Any) -> None:
    names = run("train")
    assert names["trained"].network is names["model"]
    assert names["after"].robust > names["before"].robust + 0.2
    assert names["after"].clean > 0.8
