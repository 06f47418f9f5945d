"""Ensembles: the mean of log-probabilities, the run that several trained networks make, and what is refused."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.data.dataset import load as load_images
from atent.data.images import hold_out
from atent.errors import UserError
from atent.evaluation.trained import load
from atent.models import Ensemble, Shape
from atent.models.build import build_model
from atent.models.weights import weights_hash
from atent.randomness import derive
from atent.recipe import recipe_of
from atent.storage.files import load_tensors, read_json, read_rows, save_tensors, write_json
from atent.storage.run import Run
from atent.training.ensemble import ensemble
from atent.training.fit import fit
from short_runs import QUIET, tiny
from test_cli import assert_refused, atent


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    recipe = tiny(epochs=1)
    changed = [recipe.model_copy(update={"seed": seed, "validation_seed": 0, "standardize": True}) for seed in (0, 1)]
    return [fit(one, folder / f"seed-{one.seed}", how=QUIET).folder for one in changed]


def test_the_answer_is_the_geometric_mean_of_the_probabilities() -> None:
    first, second = nn.Linear(3, 4), nn.Linear(3, 4)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    p = first(x).exp() / first(x).exp().sum(1, keepdim=True)
    q = second(x).exp() / second(x).exp().sum(1, keepdim=True)
    torch.testing.assert_close(Ensemble([first, second])(x).softmax(1), (p * q).sqrt() / (p * q).sqrt().sum(1)[:, None])


def test_a_logit_that_all_answers_of_a_member_share_changes_nothing() -> None:
    first, second, shifted = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4)
    shifted.load_state_dict({"weight": second.weight, "bias": second.bias + 7.0})
    x = torch.randn(5, 3)
    torch.testing.assert_close(Ensemble([first, second])(x), Ensemble([first, shifted])(x))


def test_a_name_builds_an_ensemble_with_other_weights_in_each_member() -> None:
    network = build_model("3*lenet", Shape((1, 28, 28), 10))
    single = sum(parameter.numel() for parameter in build_model("lenet", Shape((1, 28, 28), 10)).parameters())
    assert sum(parameter.numel() for parameter in network.parameters()) == 3 * single
    assert isinstance(network, Ensemble)
    assert len({weights_hash(member) for member in network.members}) == 3


@pytest.mark.parametrize("name", ["1*lenet", "0*lenet", "65*lenet", "2*2*lenet", "2*nothing", "x*lenet", "2*"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="model"):
        build_model(name, Shape((1, 28, 28), 10))


def test_the_ensemble_of_two_runs_is_a_run(runs: list[Path], tmp_path: Path) -> None:
    run = ensemble(runs, tmp_path / "both")
    x, _ = load_images("mnist-small", "test").batch(slice(20))
    members = [load(one) for one in runs]
    with torch.no_grad():
        expected = sum(member(x).log_softmax(1) for member in members) / 2
        torch.testing.assert_close(load(run.folder)(x), expected)
    assert read_json(run.recipe_file) == read_json(runs[0] / "recipe.json") | {"model": "2*small-cnn"}
    known = read_json(run.members)["members"]
    assert [(one["seed"], one["weights"]) for one in known] == [(k, weights_hash(m)) for k, m in enumerate(members)]
    assert atent("attack", run.folder, "--examples", 30, "--set", "steps=2") == 0
    (file,) = (run.folder / "attack").glob("*.jsonl")
    assert next(iter(read_rows(file)))["model"] == "2*small-cnn"
    assert atent("verify", run.folder) == 0
    assert atent("report", run.folder, "--out", tmp_path / "report.html") == 0
    assert atent("export", run.folder, "--to", tmp_path / "hub") == 0
    assert "An ensemble of 2 networks" in (tmp_path / "hub" / "README.md").read_text()


def test_an_ensemble_is_not_trained_and_its_folder_not_taken(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "both"
    assert atent("ensemble", *runs, "--to", folder) == 0
    capsys.readouterr()
    before = (folder / "best.safetensors").read_bytes()
    assert_refused(capsys, ["is an ensemble"], "train", folder / "recipe.json", "--out", folder)
    assert_refused(capsys, ["is a run already"], "ensemble", *runs, "--to", folder)
    assert_refused(capsys, ["is a run already"], "ensemble", *runs, "--to", runs[0])
    assert (folder / "best.safetensors").read_bytes() == before
    assert not Run(folder).last.exists()


def test_runs_that_do_not_go_together_are_refused(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    to = tmp_path / "none"
    assert_refused(capsys, ["1 runs for an ensemble; allowed: 2 to 64"], "ensemble", runs[0], "--to", to)
    assert_refused(capsys, ["have the same weights"], "ensemble", runs[0], runs[0], "--to", to)
    assert_refused(capsys, ["allowed: the same"], "ensemble", runs[0], "zoo:mnist-l2", "--to", to)
    assert_refused(capsys, ["no weights at"], "ensemble", runs[0], tmp_path / "missing", "--to", to)
    other = shutil.copytree(runs[1], tmp_path / "other")
    tensors, info = load_tensors(Run(other).best)
    save_tensors(Run(other).best, {**tensors, "standardize.mean": tensors["standardize.mean"] + 1}, info)
    assert_refused(capsys, ["other means or deviations"], "ensemble", runs[0], other, "--to", to)
    assert not to.exists()


def test_members_that_hold_out_other_images_are_told(runs: list[Path], tmp_path: Path) -> None:
    other, said = shutil.copytree(runs[1], tmp_path / "other"), list[str]()
    write_json(Run(other).recipe_file, read_json(Run(other).recipe_file) | {"validation_seed": 5})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atent.training.ensemble.say", said.append)
        ensemble(runs, tmp_path / "both")
        assert said == []
        ensemble([runs[0], other], tmp_path / "apart")
    assert len(said) == 1
    assert "validation_seed" in said[0]


def test_trainings_with_the_same_validation_seed_hold_out_the_same_images(runs: list[Path]) -> None:
    recipes = [recipe_of(Run(folder)) for folder in runs]
    images = load_images("mnist-small", "train")
    held = [hold_out(images, one.validation, derive(one.split_seed, "hold-out"))[1] for one in recipes]
    assert torch.equal(held[0].batch(slice(None))[0], held[1].batch(slice(None))[0])
    own = recipes[1].model_copy(update={"validation_seed": None})
    apart = hold_out(images, own.validation, derive(own.split_seed, "hold-out"))[1]
    assert not torch.equal(held[0].batch(slice(None))[0], apart.batch(slice(None))[0])
