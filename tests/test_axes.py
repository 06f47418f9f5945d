"""The three axes: every search goes with every loss and every update, as keys of a recipe (docs/search.md)."""

import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atent.defenses import Mart, Search, Trades
from atent.recipe import load_recipe, parse_recipe
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.step import Step, train_step
from short_runs import QUIET
from toys import generator, small_batch, small_network

SEARCHES: dict[str, dict[str, Any]] = {
    "pgd": {},
    "few noisy steps": {"steps": 2, "reach": 1.6, "temperature": 0.5},
    "shrinking steps": {"steps": 3, "reach": 2.0, "decay": 0.25, "temperature": 0.5},
    "langevin": {"direction": "raw", "project": "never", "pull": 1.0, "temperature": 0.01, "step": 0.1},
    "adaptive pull": {"project": "never", "pull": 2.0, "pull_rate": 0.5},
}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("pgd-at", "trades", "mart", "smooth-adv", "atent")},
    "samples": {"name": "atent", "share": 0.5},
}
UPDATES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"optimizer.name": "adam"},
    "entropy-sgd": {"optimizer.name": "entropy-sgd", "optimizer.steps": 2},
    "awp": {"awp": 0.01},
    "gibbs": {"gibbs": 1.0},
}
TWO_BATCHES = {"validation": 5900, "batch": 50, "epochs": 1, "monitor_examples": 2, "monitor.steps": 1}


COMBINATIONS = [
    one
    for one in product(SEARCHES, LOSSES, UPDATES)
    if one[1:] != ("samples", "gibbs")  # gibbs needs one loss term
]


@pytest.mark.parametrize(("search", "loss", "update"), COMBINATIONS)
def test_every_combination_trains(search: str, loss: str, update: str) -> None:
    """Two steps with the methods of a recipe."""
    fields = {f"defense.{key}": value for key, value in ({"steps": 2} | SEARCHES[search] | LOSSES[loss]).items()}
    recipe = load_recipe("demo", fields | UPDATES[update])
    model, (x, y), source = small_network(dropout=0), small_batch(), generator()
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    before = [weight.detach().clone() for weight in weights]
    optimizer = recipe.methods.optimizer(model.parameters())
    steps = [
        train_step(
            *(model, optimizer, recipe.methods.defense, x, y, Threat("l2", 0.5), source),
            awp=recipe.awp,
            gibbs=recipe.gibbs,
        )
        for _ in range(2)
    ]
    assert all(0 < step.radius < 2 for step in steps)
    assert not any(torch.equal(old, new) for old, new in zip(before, weights, strict=True))


def page_recipes() -> list[str]:
    page = (Path(__file__).parents[1] / "docs" / "search.md").read_text(encoding="utf-8")
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("text", page_recipes(), ids=["trades on a noisy chain", "mart with awp", "adaptive pull"])
def test_the_recipes_of_the_page_train(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For two batches by the training loop, and what is named there is what is used."""
    table = load_recipe("demo", TWO_BATCHES).model_dump() | tomllib.loads(text)
    recipe = parse_recipe(table, "the page", make="all")
    used: list[tuple[Any, float]] = []

    def watched(*arguments: Any, awp: float, **added: Any) -> Step:
        used.append((arguments[2], awp))
        return train_step(*arguments, awp=awp, **added)

    monkeypatch.setattr("atent.training.fit.train_step", watched)
    fit(recipe, tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), how=QUIET)
    assert len(used) == 2
    defense, awp = used[-1]
    assert isinstance(defense, Search)
    if defense.pull_rate:
        assert defense.pull != used[0][0].pull
    else:
        assert (defense, awp) in [(Trades(temperature=0.5), 0.0), (Mart(), 0.005)]
