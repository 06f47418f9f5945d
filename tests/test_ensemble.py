"""Ensembles: the mean of log-probabilities, the run that several trained networks make, and what is refused."""

import html
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.data.dataset import load as load_images
from atent.data.images import Images, hold_out
from atent.errors import UserError
from atent.evaluation.trained import load
from atent.models import Ensemble, Shape
from atent.models.build import build_model
from atent.models.weights import weights_hash
from atent.recipe import load_recipe
from atent.storage.files import load_tensors, read_json, read_rows, save_tensors, write_json
from atent.storage.run import Run
from atent.training.ensemble import ensemble
from atent.training.fit import fit
from short_runs import QUIET, tiny
from test_cli import assert_refused, atent
from toys import own_folder


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("1*lenet", "1 members; allowed: 2 to 64"),
        ("65*lenet", "65 members; allowed: 2 to 64"),
        ("2*2*lenet", "unknown model in an ensemble '2*lenet'"),
        ("2*nothing", "unknown model in an ensemble 'nothing'"),
        ("2*timm:resnet18", "unknown model in an ensemble 'timm:resnet18'"),
        ("2*test_ensemble:planted", "unknown model in an ensemble 'test_ensemble:planted'"),
        ("02*lenet", "unknown model '02*lenet'"),
        ("2*", "unknown model '2*'"),
        (f"{'9' * 5000}*lenet", "unknown model"),
    ],
)
def test_other_names_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        build_model(name, Shape((1, 28, 28), 10))


def planted() -> None:
    """What `2*test_ensemble:planted` must not call."""
    raise AssertionError


def test_the_average_is_taken_in_full_precision_where_passes_are_not() -> None:
    """Neighbouring outputs of bfloat16 are often equal, which disturbs losses of differences."""
    torch.manual_seed(0)
    network = Ensemble([nn.Linear(20, 50), nn.Linear(20, 50)])
    x = torch.randn(100, 20)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out, halves = network(x), [member(x) for member in network.members]
    assert (halves[0].dtype, out.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out, sum(half.double().log_softmax(1) for half in halves).float() / 2)
    assert Ensemble([nn.Linear(2, 2).double()])(torch.zeros(1, 2).double()).dtype == torch.float64


def test_members_whose_outputs_have_a_field_logits_can_join() -> None:
    class Wrapped(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(x))

    first, second = Wrapped(3, 4), nn.Linear(3, 4)
    second.load_state_dict(first.state_dict())
    x = torch.randn(5, 3)
    torch.testing.assert_close(Ensemble([first, second])(x), second(x).log_softmax(1))


def test_the_ensemble_of_two_runs_is_a_run(runs: list[Path], tmp_path: Path) -> None:
    run = ensemble(runs, tmp_path / "both")
    x, _ = load_images("mnist-small", "test").batch(slice(20))
    members = [load(one) for one in runs]
    with torch.no_grad():
        expected = sum(member(x).log_softmax(1) for member in members) / 2
        torch.testing.assert_close(load(run.folder)(x), expected)
    assert read_json(run.recipe_file) == read_json(runs[0] / "recipe.json") | {"model": "2*small-cnn"}
    known = read_json(run.members)["members"]
    assert [(one["recipe"]["seed"], one["weights"]) for one in known] == [
        (k, weights_hash(m)) for k, m in enumerate(members)
    ]
    assert atent("attack", run.folder, "--examples", 30, "--set", "steps=2") == 0
    (file,) = (run.folder / "attack").glob("*.jsonl")
    assert next(iter(read_rows(file)))["model"] == "2*small-cnn"
    assert atent("verify", run.folder) == 0
    assert atent("ensemble", *runs, "--to", tmp_path / "again") == 0
    assert_same_weights(run, Run(tmp_path / "again"))
    assert atent("report", tmp_path / "again", "--out", tmp_path / "report.html") == 0
    report = (tmp_path / "report.html").read_text()
    assert f"atent ensemble {runs[0]} {runs[1]} --to {tmp_path / 'again'}" in html.unescape(report)
    assert "atent train" not in report
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
    assert_refused(capsys, ["exists already"], "ensemble", *runs, "--to", folder)
    assert_refused(capsys, ["exists already"], "ensemble", *runs, "--to", runs[0])
    assert (folder / "best.safetensors").read_bytes() == before
    assert not Run(folder).last.exists()


def test_runs_that_do_not_go_together_are_refused(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    to = tmp_path / "none"

    def refused(words: str, *members: str | Path) -> None:
        assert_refused(capsys, [words], "ensemble", *members, "--to", to)
        assert not to.exists()

    refused("1 runs for an ensemble; allowed: 2 to 64", runs[0])
    refused("have the same weights", runs[0], runs[0])
    refused("differ in averaging, ", runs[0], "zoo:mnist-linf")
    refused("no weights at", runs[0], tmp_path / "missing")
    refused("has the network '2*small-cnn'", ensemble(runs, tmp_path / "both").folder, runs[0])
    capsys.readouterr()
    refused("differ in defense;", runs[0], changed(runs[1], tmp_path / "defense", defense={"name": "pgd-at"}))
    other = shutil.copytree(runs[1], tmp_path / "other")
    tensors, info = load_tensors(Run(other).best)
    save_tensors(Run(other).best, {**tensors, "standardize.mean": tensors["standardize.mean"] + 1}, info)
    refused("allowed: runs with the same validation_seed", runs[0], other)
    foreign = tmp_path / "foreign.safetensors"
    save_tensors(foreign, tensors, {})
    refused("is no run or checkpoint of atent", runs[0], foreign)
    to = tmp_path / "file"
    to.write_text("mine")
    assert_refused(capsys, ["exists already"], "ensemble", *runs, "--to", to)
    assert to.read_text() == "mine"


def test_another_spelling_of_the_threat_is_the_same_threat(runs: list[Path], tmp_path: Path) -> None:
    assert ensemble(
        [runs[0], changed(runs[1], tmp_path / "spelled", threat="linf:0.30")], tmp_path / "both"
    ).best.exists()


def test_members_that_hold_out_other_images_are_told(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("atent.training.ensemble.say", said.append)
    ensemble(runs, tmp_path / "both")
    assert said == []
    ensemble([runs[0], changed(runs[1], tmp_path / "other", validation_seed=5)], tmp_path / "apart")
    none = [changed(run, tmp_path / f"none-{k}", validation=0) for k, run in enumerate(runs)]
    ensemble(none, tmp_path / "without")
    assert len(said) == 2
    assert "validation_seed" in said[0]


def test_own_images_keep_their_record_and_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members and ensemble have rows of the same data, so they can be compared; other images are refused."""
    monkeypatch.chdir(tmp_path)
    own_folder(Path("photos"))
    own_folder(Path("others"), classes=4)
    members = []
    for place, seed in (("photos", 0), ("photos", 1), ("others", 2)):
        settings = {"data": place, "model": "small-cnn", "epochs": 1, "seed": seed, "validation_seed": 0}
        members.append(fit(load_recipe("own-images", settings), tmp_path / f"seed-{seed}", how=QUIET).folder)
    run = ensemble(members[:2], tmp_path / "both")
    assert run.data_record() == Run(members[0]).data_record()
    assert read_json(run.recipe_file)["data"] == "photos"
    for folder in (members[0], run.folder):
        assert atent("attack", folder, "--set", "steps=1") == 0
    assert atent("compare", members[0], run.folder) == 0
    shutil.move("photos", "photos-2")
    shutil.move("others", "photos")
    renamed = changed(members[2], tmp_path / "renamed", data="photos")
    with pytest.raises(UserError, match="trained on different images"):
        ensemble([members[0], renamed], tmp_path / "none")


def test_a_kill_leaves_no_part_of_an_ensemble(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("atent.training.ensemble.save_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            ensemble(runs, tmp_path / "both")
    assert not (tmp_path / "both").exists()
    ensemble(runs, tmp_path / "both")
    assert [path.name for path in tmp_path.iterdir()] == ["both"]


def test_trainings_with_the_same_validation_seed_hold_out_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Tensor] = []

    def spy(images: Images, *settings: Any) -> tuple[Images, Images]:
        parts = hold_out(images, *settings)
        held.append(parts[1].batch(slice(None))[0])
        return parts

    monkeypatch.setattr("atent.training.start.hold_out", spy)
    with TemporaryDirectory() as folder:
        for k, changes in enumerate(({"seed": 0}, {"seed": 1, "validation_seed": 0}, {"seed": 1})):
            fit(tiny(epochs=1, **changes), Path(folder) / str(k), how=QUIET)
    assert torch.equal(held[0], held[1])
    assert not torch.equal(held[1], held[2])


def changed(run: Path, to: Path, **keys: object) -> Path:
    """A copy of a run whose recipe has other values."""
    shutil.copytree(run, to)
    write_json(Run(to).recipe_file, read_json(Run(to).recipe_file) | keys)
    return to


def assert_same_weights(one: Run, other: Run) -> None:
    ours, theirs = (load_tensors(run.best)[0] for run in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
