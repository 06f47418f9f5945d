"""Damaged checkpoints are refused in one line that names the file; nothing else comes out of them."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atent.errors import UserError
from atent.evaluation.target import open_target
from atent.recipe import Recipe
from atent.storage.files import load_tensors, save_tensors
from atent.storage.run import Run
from atent.training.fit import fit
from short_runs import QUIET, tiny

Damage = Callable[[dict[str, Tensor], dict[str, Any]], Any]


def recipe() -> Recipe:
    return tiny(epochs=1, defense__name="standard", averaging=0.9)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(recipe(), tmp_path_factory.mktemp("run"), model=network(), how=QUIET)


def attempt(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | str:
    """What a checkpoint holds, or why it was refused."""
    try:
        return load_tensors(path)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_thousand_flipped_bytes_change_nothing_that_is_read(trained: Run, tmp_path: Path, name: str) -> None:
    whole = getattr(trained, name).read_bytes()
    tensors, info = load_tensors(getattr(trained, name))
    header = int.from_bytes(whole[:8], "little") + 8
    path, chance, refused = tmp_path / f"{name}.safetensors", random.Random(0), 0
    for k in range(1000):
        place = chance.randrange(header if k % 2 else len(whole))  # the header is small: half of them hit it
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :])
        read = attempt(path)
        if isinstance(read, str):
            assert str(path) in read
            assert "\n" not in read
            refused += 1
        else:
            found, said = read
            assert said == info
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    assert refused > 900


def test_a_checkpoint_without_a_checksum_is_still_read(trained: Run, tmp_path: Path) -> None:
    """As our first versions wrote them."""
    tensors, info = load_tensors(trained.last)
    save_file(tensors, tmp_path / "old.safetensors", metadata={"atent": json.dumps(info)})
    assert load_tensors(tmp_path / "old.safetensors")[1] == info


def old_name(name: str) -> str:
    """As our first versions named the parts of a standardized network, in the weights and in their average."""
    part, slashes, rest = name.rpartition("//")
    for new, old in (("standardize.", "0."), ("network.", "1.")):
        rest = re.sub(rf"^(module\.)?{re.escape(new)}", rf"\g<1>{old}", rest)
    return part + slashes + rest


def test_a_standardized_run_of_our_first_versions_is_resumed_and_opened(tmp_path: Path) -> None:
    class Stopped(Exception):  # noqa: N818 (nothing went wrong)
        pass

    def stop(line: str) -> None:
        if line.startswith("epoch 2/2"):
            raise Stopped

    standardized = tiny(epochs=2, defense__name="standard", averaging=0.9, standardize=True, model="lenet5")
    whole = fit(standardized, tmp_path / "whole", how=QUIET)
    run = Run(tmp_path / "old")
    with pytest.raises(Stopped):
        fit(standardized, run.folder, how=replace(QUIET, say=stop, checkpoint_batches=3))
    for path in (run.last, run.best):
        tensors, info = load_tensors(path)
        save_tensors(path, {old_name(name): tensor for name, tensor in tensors.items()}, info)
    names = load_tensors(run.last)[0].keys()
    assert {"0.mean", "1.classifier.0.weight", "average//module.1.classifier.0.weight"} < names
    assert not [name for name in names if "network." in name]
    fit(standardized, run.folder, how=QUIET)
    resumed, expected = (load_tensors(of.last)[0] for of in (run, whole))
    assert resumed.keys() == expected.keys()
    assert "network.classifier.0.weight" in resumed
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    assert open_target(run.folder, examples=1).weights == open_target(whole.folder, examples=1).weights


DAMAGES: dict[str, tuple[Damage, str]] = {
    "momentum missing": (
        lambda tensors, _: tensors.pop("optimizer//0.momentum_buffer"),
        "0.momentum_buffer is missing",
    ),
    "momentum of a stranger": (
        lambda tensors, _: tensors.update({"optimizer//9.momentum_buffer": torch.zeros(2)}),
        "9.momentum_buffer is not listed",
    ),
    "momentum of another shape": (
        lambda tensors, _: tensors.update({"optimizer//1.momentum_buffer": torch.zeros(3)}),
        r"1.momentum_buffer has the shape \(3,\); expected \(10,\)",
    ),
    "weight missing": (lambda tensors, _: tensors.pop("1.weight"), "1.weight"),
    "average missing": (lambda tensors, _: tensors.pop("average//module.1.weight"), "1.weight"),
    "batch before the first": (lambda _, info: info.update(batch=-1), "batch = -1"),
    "batch after the last": (lambda _, info: info.update(batch=5), "batch 5 of 4"),
    "epoch after the last": (lambda _, info: info.update(epoch=2), "epoch 2 of 1"),
    "epoch without its line": (lambda _, info: info.update(history=[]), "0 epochs logged"),
    "epoch of another type": (lambda _, info: info.update(epoch="1"), "epoch = '1'"),
    "history of another type": (lambda _, info: info.update(history=[3]), "history"),
    "line without a loss": (lambda _, info: info["history"][0].pop("loss"), "loss"),
    "sums of another type": (lambda _, info: info["tally"].update(images="many"), "tally"),
    "no position": (lambda _, info: info.pop("epoch"), "epoch is missing"),
    "no recipe": (lambda _, info: info.pop("recipe"), "recipe"),
    "recipe of another type": (lambda _, info: info.update(recipe=[]), "recipe"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_impossible_state_is_refused(trained: Run, tmp_path: Path, damage: str) -> None:
    """The checksum is right here: the content itself cannot be."""
    change, words = DAMAGES[damage]
    run = Run(tmp_path)
    for file in ("recipe_file", "best"):
        getattr(run, file).write_bytes(getattr(trained, file).read_bytes())
    tensors, info = load_tensors(trained.last)
    change(tensors, info)
    save_tensors(run.last, tensors, info)
    before = run.last.read_bytes()
    with pytest.raises(UserError, match=words) as caught:
        fit(recipe(), tmp_path, model=network(), how=QUIET)
    assert str(run.last) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert run.last.read_bytes() == before
