"""A small zoo: networks with random weights, as `scripts/fill_zoo.py` stores them."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from atent.models import MODELS, Shape
from atent.recipe import load_recipe
from atent.storage.files import save_tensors, write_json
from atent.zoo import index

ROOT = Path(__file__).parents[1]


def fill_zoo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("fill_zoo")


def untrained_run(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A run folder with a network that has random weights of this seed."""
    recipe = load_recipe("demo", {"model": "small-cnn", "data": "mnist", **changes})
    torch.manual_seed(seed)
    network = MODELS[recipe.model](Shape((1, 28, 28), 10))
    settings = recipe.model_dump(mode="json")
    folder.mkdir(parents=True)
    write_json(folder / "recipe.json", settings)
    command = {"command": "atent train demo --data-dir /somewhere/else --threads 1"}
    write_json(folder / "environment.json", {"starts": [command]})
    save_tensors(folder / "best.safetensors", network.state_dict(), {"recipe": settings})
    return folder


def toy_zoo(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> ModuleType:
    """Use the zoo in `folder`, with untrained networks of these names; no MNIST was fetched."""
    script, place = fill_zoo(monkeypatch), folder / "zoo"
    place.mkdir(parents=True)
    (place / "index.json").write_text("{}")
    monkeypatch.setattr(index, "FOLDER", place)
    monkeypatch.setattr(script, "RESULTS", folder / "results")
    monkeypatch.setenv("ATENT_DATA", str(folder / "no-data"))
    for seed, name in enumerate(names):
        smooth = {"smooth": 0.5, "threat": "l2:0.1"} if "smooth" in name else {}
        script.add(untrained_run(folder / "trained" / name, seed, **smooth), name)
    return script
