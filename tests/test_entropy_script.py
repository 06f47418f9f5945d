"""`scripts/entropy.py`: budgets, arms and tables; trainings and evaluations have tests of their own."""

import importlib
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atent.errors import UserError
from atent.storage.files import write_rows


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    arms, table, budget = (importlib.import_module(name) for name in ("entropy_arms", "entropy_table", "equal_budget"))
    return arms, table, budget


def test_all_arms_of_a_group_have_the_same_cost(scripts: tuple[ModuleType, ...]) -> None:
    """Images times passes, in one epoch or several; arms with 40 epochs of 2,000 images have a length of their own."""
    arms, _, budget = scripts
    for name, group in arms.GROUPS.items():
        recipes = [arms.recipe_for(arms.Job(arm, 20.0, 0.05, 0), 60_000) for arm in group]
        costs = [recipe.epochs * (60_000 - recipe.validation) * budget.time_of(recipe) for recipe in recipes]
        if name == "overfitting":
            assert {(recipe.epochs, recipe.validation) for recipe in recipes} == {(40, 58_000)}
        else:
            assert max(costs) / min(costs) < 1.011  # at most 1 % of an epoch is left out
            assert costs[0] == pytest.approx(20 * 60 * arms.RATE[recipes[0].model], rel=0.011)
        assert all(recipe.validation >= 5000 for recipe in recipes)  # 300 of these are evaluated


def test_an_arm_is_a_training_and_its_parts(scripts: tuple[ModuleType, ...]) -> None:
    arms, _, _ = scripts
    recipe = arms.recipe_for(arms.Job("k3+trades+t0.5+awp", 20.0, 0.03, 7), 60_000)
    fields = ("name", "steps", "reach", "temperature")
    assert [recipe.defense[field] for field in fields] == ["trades", 3, 1.8, 0.5]
    assert (recipe.awp, recipe.optimizer["lr"], recipe.seed) == (0.01, 0.03, 7)
    for wrong in ("k7", "k3+nothing"):
        with pytest.raises(UserError, match="unknown"):
            arms.changes_of(wrong)


def row(arm: str, seed: int, strong: str, lr: float = 0.05, minutes: float = 5.0) -> dict[str, Any]:
    job = {"arm": arm, "minutes": minutes, "lr": lr, "seed": seed, "data": "mnist", "images": 1000, "failed": None}
    return {**job, "right": {"PGD-40": "1" * len(strong), "strong": strong}}


def test_differences_are_those_of_the_same_images_and_seeds(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    rows = [
        row("k10", 0, "1100"),
        row("k10", 1, "1111"),
        row("k10", 0, "0000", lr=0.03),  # the worse learning rate of the reference is not compared with
        row("k3", 0, "1110"),
        row("k3", 1, "1110"),
        row("k1", 2, "1111"),
    ]
    lines = table.table(rows, "k10").splitlines()
    by_arm = {tuple(line.split(" | ")[:2]): line for line in lines if line.startswith("| k")}
    seeds = statistics.stdev([0.25, -0.25]) / 2**0.5
    images = statistics.stdev([0, 0, 1, 0, 0, 0, 0, -1]) / 8**0.5
    assert f"+0.0 (images ± {100 * images:.1f}, seeds ± {100 * seeds:.1f})" in by_arm["| k3", "0.05"]
    assert "75.0 ± 25.0" in by_arm["| k10", "0.05"]
    assert "no common seed" in by_arm["| k1", "0.05"]
    assert "-50.0" in by_arm["| k10", "0.03"]


def test_arms_with_other_budgets_can_be_compared(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    rows = [row("k10", 0, "1100", minutes=20), row("k3", 0, "1110") | {"failed": "plateau"}]
    assert "k10@20" not in table.table(rows, None)
    (line,) = [line for line in table.table(rows, "k10@20", together=True).splitlines() if line.startswith("| k3@5")]
    assert "+25.0" in line
    assert "1, 1 failed" in line


def test_each_threat_has_its_table_and_its_own_first_arm_to_compare_with(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    rows = [row("k10", 0, "1100"), row("l2-k5", 0, "1000"), row("l2-k3", 0, "1010")]
    text = table.table(rows, "k10")
    assert "mnist, linf .3, 5 minutes of one core each; difference of strong from k10" in text
    assert "mnist, l2 2, 5 minutes of one core each; difference of strong from l2-k5" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| l2-k3")]
    assert "+25.0" in line


def test_noise_is_compared_over_the_seeds_that_both_have(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    rows = [
        row("k3+b32", 0, "1111"),  # the better rate without noise, but there is no row with noise
        row("k3+b32", 0, "1110", lr=0.03),
        row("k3+b32", 1, "0000", lr=0.03),
        row("k3+b32+t0.5", 0, "1111", lr=0.03),
        row("k3+b32+t0.5", 2, "0000", lr=0.03),
        row("k1+b32", 0, "1000") | {"failed": "collapsed"},
        row("k1+b32", 1, "0000"),
        row("k2+b32", 0, "1000", minutes=20),
        row("k2+b32", 0, "1000") | {"right": {}},
        row("k2+b32", 0, "1000") | {"data": "other"},
    ]
    _, _, *lines = table.by_noise(rows, ["k1", "k2", "k3", "k5"], "b32", 5).splitlines()
    assert lines == [
        "| `k1` | 0.05 | 1,000 | 2, 1 failed | 12.5 ± 12.5 |  |  |",
        "| `k3` | 0.03 | 1,000 | 1 | 75.0 ± 21.7 | 100.0 ± 0.0 | +25.0 (images ± 25.0) |",
    ]


def test_a_learning_rate_that_was_not_chosen_is_left_out(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    text = table.table([row("k10", 0, "1100"), row("k10", 0, "1100", lr=0.03) | {"right": {}}], "k10")
    assert [line for line in text.splitlines() if "0.03" in line] == []


def test_seeds_with_the_same_accuracy_have_a_standard_error_of_zero(scripts: tuple[ModuleType, ...]) -> None:
    _, table, _ = scripts
    assert "50.0 ± 0.0" in table.table([row("k10", 0, "1100"), row("k10", 1, "0011")], None)


@pytest.mark.usefixtures("scripts")
def test_the_picture_has_a_point_for_each_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = importlib.import_module("entropy_picture")
    rows = [row("d3", 0, "1110"), row("d3", 1, "1111"), row("d3", 0, "1111", minutes=20), row("k10", 0, "1100")]
    rows.append(row("d3", 0, "1111", lr=0.03))  # one seed only
    monkeypatch.setattr(picture, "ROWS", tmp_path / "rows.jsonl")
    write_rows(picture.ROWS, rows)
    picture.draw(tmp_path / "picture")
    drawn = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "3 shrinking steps: 87.5 after 5, 100.0 after 20." in drawn
    assert "10 equal steps (PGD training): 50.0 after 5." in drawn
    assert "5 shrinking steps:" not in drawn
