"""A network written for other programs: the same answers, the numbers of its rows, nothing of other weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.data.dataset import load as load_images
from atent.errors import UserError
from atent.evaluation.trained import load
from atent.export import export_run
from atent.export.card import data_name
from atent.export.formats import check_same
from atent.export.robustbench import missing, model_info
from atent.recipe import load_recipe
from atent.report.tables import results
from atent.storage.files import load_tensors, read_json, save_tensors
from atent.training.fit import fit
from short_runs import QUIET, tiny
from test_cli import assert_refused, atent
from toys import own_folder, small_batch, small_network


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fit(tiny(epochs=1), tmp_path_factory.mktemp("runs") / "tiny", how=QUIET).folder
    assert atent("attack", folder, "--examples", 30, "--set", "steps=2") == 0
    return folder


def test_the_folder_has_the_network_its_settings_and_its_numbers(run: Path, tmp_path: Path) -> None:
    (line,) = export_run(run, tmp_path / "hub", licence="mit")
    assert "results of these weights: 1" in line
    x, _ = load_images("mnist-small", "test").batch(slice(5))
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "hub" / "model.safetensors")(x), load(run)(x))
    config = read_json(tmp_path / "hub" / "config.json")
    assert config["recipe"] == read_json(run / "recipe.json")
    assert config["id2label"]["7"] == "7"
    (result,) = results(run)
    card = (tmp_path / "hub" / "README.md").read_text()
    robust = result.robust
    assert f"| PGD-2 | linf:0.3 | 30 | {100 * result.clean.value:.2f} | {100 * robust.value:.2f} " in card
    assert f"[{100 * robust.low:.1f}, {100 * robust.high:.1f}]" in card
    assert config["weights_sha256"] in card


def test_the_header_of_the_card_is_what_the_hub_reads(run: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    export_run(run, tmp_path, name='a "b": c', licence="mit")
    _, header, _ = (tmp_path / "README.md").read_text().split("---\n", 2)
    read = yaml.safe_load(header)
    assert (read["license"], read["library_name"]) == ("mit", "atent")
    (index,) = read["model-index"]
    assert index["name"] == 'a "b": c'
    (one,) = index["results"]
    assert one["dataset"]["name"] == "mnist-small"
    assert 0 <= one["metrics"][0]["value"] <= 100


def test_rows_of_other_weights_are_left_out(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    tensors, info = load_tensors(other / "best.safetensors")
    network = load(run)
    with torch.no_grad():
        next(network.parameters()).add_(1)
    save_tensors(other / "best.safetensors", network.state_dict(), info)
    assert tensors.keys() == network.state_dict().keys()
    export_run(other, tmp_path / "hub")
    assert "Not evaluated yet" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("option", ["--onnx", "--torch-export"])
def test_other_formats_answer_as_the_network(option: str, run: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime") if option == "--onnx" else None
    assert atent("export", run, "--to", tmp_path, option) == 0
    x, _ = load_images("mnist-small", "test").batch(slice(200, 207))
    with torch.no_grad():
        expected = load(run)(x)
    if runtime is not None:
        session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"pixels": x.numpy()})[0])
    else:
        found = torch.export.load(tmp_path / "model.pt2").module()(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not list(tmp_path.glob(".*"))


def test_a_format_that_answers_otherwise_is_refused() -> None:
    network, (x, _) = small_network(dropout=0).eval(), small_batch()
    check_same(network, x, lambda images: network(images).detach().numpy(), "itself")
    for factor in (-1, 1.001):
        with pytest.raises(UserError, match=r"an engine does not answer as the network: \d+ of 8 predictions differ"):
            check_same(network, x, lambda images: network(images).detach().numpy() * factor, "an engine")  # noqa: B023


def test_a_users_own_images_keep_their_classes(tmp_path: Path) -> None:
    recipe = load_recipe("own-images", {"data": own_folder(tmp_path / "images"), "epochs": 1, "model": "small-cnn"})
    run = fit(recipe.model_copy(update={"monitor_examples": 3}), tmp_path / "run", how=QUIET)
    assert atent("attack", run.folder, "--examples", 3, "--set", "steps=1") == 0
    export_run(run.folder, tmp_path / "hub")
    config = read_json(tmp_path / "hub" / "config.json")
    assert config["id2label"] == {"0": "0", "1": "1", "2": "2"}
    assert isinstance(load(tmp_path / "hub" / "model.safetensors"), nn.Module)
    assert config["recipe"]["data"] == "images"
    files = [path.read_bytes() for path in (tmp_path / "hub").iterdir()]
    assert all(str(tmp_path).encode() not in content for content in files)
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "\ndatasets: " not in card
    assert '"dataset": {"name": "images", "type": "images", "split": "test"}' in card


def test_own_data_does_not_get_the_name_of_published_data(tmp_path: Path) -> None:
    assert data_name(str(tmp_path / "mnist")) == "own-mnist"
    assert data_name("mnist") == "mnist"
    assert data_name("a/b (given in Python)") == "a/b (given in Python)"


def test_robustbench_gets_what_the_rows_know() -> None:
    recipe = load_recipe("cifar10-linf-pgd-at")
    place = {"kind": "attack", "threat": recipe.threat, "variant": None, "clean": 0.8012}
    rows = [
        {**place, "method": "PGD-20", "images": 10_000, "robust": 0.5},
        {**place, "method": "AutoAttack", "images": 1_000, "robust": 0.4},
        {**place, "method": "AutoAttack", "images": 10_000, "robust": 0.4567},
    ]
    info = model_info(recipe, rows)
    assert (info["eps"], info["clean_acc"], info["autoattack_acc"]) == ("8/255", "80.12", "45.67")
    assert missing(recipe, rows) == ["fill in link, name, authors, venue and reported"]
    assert any("no AutoAttack" in line for line in missing(recipe, rows[:1]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"images": 1_000}, "on 1,000 of 10,000 test images"), ({"variant": "bf16"}, "it has no AutoAttack")],
)
def test_robustbench_gets_autoattack_on_all_images_of_the_network_itself(
    changes: dict[str, object], words: str
) -> None:
    recipe = load_recipe("cifar10-linf-pgd-at")
    row = {"kind": "attack", "threat": recipe.threat, "variant": None, "method": "AutoAttack", "images": 10_000}
    rows = [{**row, "clean": 0.8, "robust": 0.4, **changes}]
    assert model_info(recipe, rows)["autoattack_acc"] == ""
    assert any(words in line for line in missing(recipe, rows))


def test_the_card_names_the_variant_of_the_network(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    more = ["--examples", 10, "--set", "steps=1", "--smooth", 0.5, "--draws", 2, "--amp", "bf16"]
    assert atent("attack", tmp_path / "run", *more) == 0
    export_run(tmp_path / "run", tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "| PGD-1, smoothed 0.5, 2 draws, bf16 | linf:0.3 | 10 |" in card
    assert "Robust accuracy, PGD-1, smoothed 0.5, 2 draws, bf16, linf:0.3, 10 images" in card


def test_what_cannot_be_exported_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    foreign = tmp_path / "foreign.pt"
    torch.save(small_network().state_dict(), foreign)
    file = tmp_path / "file"
    file.write_text("")
    assert_refused(capsys, ["foreign.pt", "is no run"], "export", foreign, "--to", tmp_path / "hub")
    assert_refused(capsys, [str(file)], "export", run, "--to", file)
    assert json.loads((run / "recipe.json").read_text())["data"] == "mnist-small"
