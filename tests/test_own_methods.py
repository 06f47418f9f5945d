"""A user's own methods and network: trained, resumed and attacked by their names."""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atent.errors import UserError
from atent.recipe import Recipe, load_recipe, recipe_of
from atent.training.alarms import unwatched
from atent.training.fit import fit
from short_runs import QUIET
from test_cli import atent
from test_trust import QUICK, one_line, table, toml, written

OWN = """
from dataclasses import dataclass

import torch
from atent.defenses import Standard
from torch import nn

@dataclass(frozen=True)
class Defense:
    sizes: tuple[int, ...] = (1, 2)
    def __call__(self, model, x, y, threat, generator):
        yield from Standard()(model, x, y, threat, generator)

@dataclass(frozen=True)
class Optimizer:
    lr: float = 0.1
    def __call__(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr)

class Monitor:
    def __call__(self, model, x, y, threat, generator):
        return x

class Rateless:
    def __call__(self, parameters):
        return torch.optim.SGD(parameters, lr=1)

def make(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, shape.classes))
"""
NAMES = {"defense": "my_methods:Defense", "optimizer": "my_methods:Optimizer", "monitor": "my_methods:Monitor"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the user's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    own_module()


def own_table(**changes: Any) -> dict[str, Any]:
    methods = {part: {"name": name} for part, name in NAMES.items()}
    return table() | {"model": "my_methods:make", "epochs": 1} | methods | changes


def own_module(text: str = OWN) -> None:
    """Write the user's module, which a new process would read anew."""
    Path("my_methods.py").write_text(text)
    sys.modules.pop("my_methods", None)
    importlib.invalidate_caches()


def test_a_users_own_classes_and_network_are_trained_resumed_and_attacked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = ["train", toml(own_table()), "--out", "own", "--threads", "1"]
    assert atent(*train) == 0
    printed = capsys.readouterr().out
    assert "Next: atent attack own --model my_methods:make" in printed
    assert "Monitor linf:0.3" in printed
    recipe = json.loads(Path("own/recipe.json").read_text())
    assert recipe["defense"] == {"name": "my_methods:Defense", "sizes": [1, 2]}
    assert recipe["optimizer"] == {"name": "my_methods:Optimizer", "lr": 0.1}
    assert atent(*train) == 0

    capsys.readouterr()
    assert atent("attack", "own", *QUICK) == 2
    assert "--model 'my_methods:make'" in one_line(capsys)
    for granted in (["--model", "my_methods:make"], ["--trust"]):
        assert atent("attack", "own", *QUICK, *granted) == 0
        assert atent("certify", "own", "--sigma", "1", "--n", "100", *QUICK, *granted) == 0
        assert atent("attack", "own", *QUICK, *granted, "--transfer", "own") == 0
    assert len(list(Path("own/attack").glob("*.jsonl"))) == 1  # the same network either way
    written("header", table())
    assert atent("attack", "given.safetensors", *QUICK, "--transfer", "own", "--trust") == 0


def test_an_optimizer_without_a_rate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("train", toml(own_table(optimizer={"name": "my_methods:Rateless"}))) == 2
    assert "optimizer 'my_methods:Rateless' has no attribute lr" in one_line(capsys)


@pytest.mark.parametrize(
    ("member", "chosen_by", "blind"),
    [
        ("", "robust", ""),
        ('chosen_by = "clean"', "clean", ""),
        ("single_step = True", "robust", "validation = 0"),
        ("steps: int = 1", "robust", "validation = 0"),
        ("steps: int = 2", "robust", ""),
        ("steps: int = 1\n    single_step = False", "robust", ""),
    ],
)
def test_a_users_defense_says_what_chooses_its_epoch_and_that_it_makes_one_step(
    member: str, chosen_by: str, blind: str
) -> None:
    own_module(OWN.replace("sizes: tuple[int, ...] = (1, 2)", member or "pass"))
    recipe = load_recipe(toml(own_table(validation=0)))
    assert recipe.chosen_by == chosen_by
    assert blind in unwatched(recipe)
    assert bool(unwatched(recipe)) == bool(blind)
    assert load_recipe(toml(own_table(choose="robust"))).chosen_by == "robust"  # the recipe has the last word


def test_a_users_monitor_says_that_it_makes_one_step() -> None:
    own_module(OWN.replace("class Monitor:\n", "class Monitor:\n    single_step = True\n"))
    assert "(my_methods:Monitor)" in unwatched(load_recipe(toml(own_table(defense={"name": "fast"}))))


@pytest.mark.parametrize("part", ["Defense", "Monitor"])
@pytest.mark.parametrize(
    ("allowed", "schedule", "refused"),
    [
        ("threat.eps >= 0.3", {}, ""),
        ("threat.eps >= 0.4", {}, "eps 0.3 does not do"),
        (
            "threat.eps >= 0.3",
            {"warmup": 0.5},
            "at a small eps during the warm-up, eps 0.0003 does not do.*eps_warmup = 0",
        ),
        ("threat.eps >= 0.3", {"warmup": 0.5, "eps_warmup": 0}, ""),
    ],
)
def test_a_users_method_refuses_a_threat(part: str, allowed: str, schedule: dict[str, float], refused: str) -> None:
    check = f"""
    def check_threat(self, threat):
        if not {allowed}:
            raise ValueError(f"eps {{threat.eps:g}} does not do")
"""
    own_module(OWN.replace(f"class {part}:\n", f"class {part}:{check}"))
    if part == "Monitor" and "warm-up" in refused:
        refused = ""  # held-out images are attacked with the whole eps
    expected = pytest.raises(UserError, match=refused) if refused else contextlib.nullcontext()
    with expected:
        load_recipe(toml(own_table(schedule=schedule)))


def test_a_choice_that_there_is_not_is_refused() -> None:
    own_module(OWN.replace("sizes: tuple[int, ...] = (1, 2)", 'chosen_by = "speed"'))
    with pytest.raises(UserError, match=r"chosen_by 'speed'; known: clean, robust \(Defense\)"):
        _ = load_recipe(toml(own_table())).chosen_by


def test_a_run_makes_each_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import my_methods  # type: ignore[import-not-found]

    made: list[str] = []
    for name in ("Defense", "Optimizer", "Monitor"):
        own: type = getattr(my_methods, name)
        counted = type(name, (own,), {"__init__": lambda self: made.append(type(self).__name__)})
        monkeypatch.setattr(my_methods, name, counted)
    run = fit(Recipe(**own_table(epochs=3)), "own", how=QUIET)
    assert len(run.history()) == 3
    assert sorted(made) == ["Defense", "Monitor", "Optimizer"]


def test_a_recipe_made_in_python_is_built_by_fit() -> None:
    recipe = Recipe(**own_table())
    assert recipe.defense == {"name": "my_methods:Defense"}
    assert "my_methods" not in sys.modules
    run = fit(recipe, "own", how=QUIET)
    assert recipe_of(run).defense == {"name": "my_methods:Defense", "sizes": [1, 2]}
    assert recipe_of(run) == Recipe(**load_recipe(toml(own_table())).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("changed", "different"),
    [
        (("sizes: tuple[int, ...] = (1, 2)", "sizes: tuple[int, ...] = (1, 2)\n    depth: tuple[int, ...] = (3,)"), ""),
        (("sizes: tuple[int, ...] = (1, 2)", "sizes: tuple[int, ...] = (1, 3)"), "defense"),
        (("lr: float = 0.1", "lr: float = 0.2"), "optimizer"),
    ],
)
def test_a_run_goes_on_unless_what_a_users_class_does_by_default_has_changed(
    changed: tuple[str, str], different: str
) -> None:
    fit(load_recipe(toml(own_table())), "own", how=QUIET)
    own_module(OWN.replace(*changed))
    recipe = load_recipe(toml(own_table()))
    if different:
        with pytest.raises(UserError, match=rf"different: {different}\)"):
            fit(recipe, "own", how=QUIET)
        return
    fit(recipe, "own", how=QUIET)
    with pytest.raises(UserError, match=r"different: defense\)"):  # the new field, not at its default
        fit(load_recipe("given.toml", {"defense.depth": [4]}), "own", how=QUIET)
