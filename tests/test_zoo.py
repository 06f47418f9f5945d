"""Pretrained networks: opened by name everywhere, checked on opening, with the numbers of their rows and no others."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import atent as package
from atent.data.dataset import load as load_images
from atent.errors import UserError
from atent.evaluation.target import open_target
from atent.evaluation.trained import load, recipe_inside
from atent.export import export_run
from atent.models.weights import weights_hash
from atent.storage.files import load_tensors, read_json
from atent.zoo import index
from atent.zoo.index import entry_of, is_zoo, read_index, weights_file
from html_check import Reader
from test_cli import SETTINGS, assert_refused, atent
from toy_zoo import ROOT, fill_zoo, toy_zoo, untrained_run

FEW = ["--examples", 8, "--set", "steps=1", "--threads", 1]
STORED = read_index()


def first_line(path: Path) -> dict[str, Any]:
    """The header of a file of rows."""
    header: dict[str, Any] = json.loads(path.read_text().splitlines()[0])
    return header


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    return toy_zoo(monkeypatch, tmp_path, "toy", "toy-smooth")


# What comes with the package. None of these tests depends on which networks there are.


@pytest.mark.parametrize("name", STORED)
def test_a_stored_network_is_that_of_its_entry_and_its_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, entry = fill_zoo(monkeypatch), STORED[name]
    path = weights_file(f"zoo:{name}")
    recipe, network = recipe_inside(path), load(f"zoo:{name}")
    assert recipe is not None
    assert path.stat().st_size == entry.bytes
    stated = (recipe.model, recipe.data, recipe.threat, recipe.smooth, recipe.defense["name"])
    assert stated == (entry.model, entry.data, entry.threat, entry.smooth, entry.defense)
    assert weights_hash(network) == entry.weights
    assert sum(parameter.numel() for parameter in network.parameters()) == entry.parameters
    files = [*(script.RESULTS / name).rglob("*.jsonl")]
    headers = [first_line(file) for file in files if file.name != "train.jsonl"]
    assert {(header["model"], header["weights"]) for header in headers} == {(f"zoo:{name}", entry.weights)}
    assert entry.headline is not None
    assert entry.results == script.results(name, entry), "make readme makes the index from the rows"
    assert (index.FOLDER / f"{name}.md").read_text() == script.card(name), "make readme makes the cards"


def test_all_stored_networks_are_small_half_precision_and_named_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.stem: path for path in index.FOLDER.glob("*.safetensors")}
    assert sorted(files) == sorted(STORED) == sorted(path.stem for path in index.FOLDER.glob("*.md"))
    assert sum(path.stat().st_size for path in files.values()) <= fill_zoo(monkeypatch).LARGEST
    for path in files.values():
        assert {t.dtype for t in load_tensors(path)[0].values()} <= {torch.float16, torch.int64}


# How a network is stored, opened and used.


def test_the_same_run_gives_the_same_bytes(toys: ModuleType, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in index.FOLDER.iterdir()}
    toys.add(tmp_path / "trained" / "toy", "toy")
    assert {path.name: path.read_bytes() for path in index.FOLDER.iterdir()} == before
    text = Path("results/toy/environment.json").read_text()
    assert "--data-dir DATA --threads 1" in text
    assert "somewhere" not in text


def test_a_network_is_the_trained_one_up_to_half_precision(toys: ModuleType, tmp_path: Path) -> None:
    assert toys
    network, trained = package.load("zoo:toy"), load(tmp_path / "trained" / "toy")
    assert not network.training
    for ours, theirs in zip(network.parameters(), trained.parameters(), strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs.half().float())
    assert weights_hash(network) == entry_of("zoo:toy").weights
    assert entry_of("zoo:toy").bytes < (tmp_path / "trained" / "toy" / "best.safetensors").stat().st_size / 1.9


def test_values_beyond_half_precision_and_too_large_a_zoo_are_refused(
    toys: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"w has values that half precision cannot hold: up to 1e\+06"):
        toys._halved("w", torch.tensor([1e6]))
    monkeypatch.setattr(toys, "LARGEST", 1_500_000)
    with pytest.raises(UserError, match=r"the zoo would have 1,88\d,\d+ bytes; allowed: 1,500,000"):
        toys.add(tmp_path / "trained" / "toy", "third")
    assert not (index.FOLDER / "third.safetensors").exists()
    with pytest.raises(UserError, match="allowed: small letters"):
        toys.add(tmp_path / "trained" / "toy", "../toy")


def test_every_command_takes_a_network_by_name(
    toys: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attacked, shown, reported, compared, verified, exported; without MNIST on its packaged part, which is said."""
    assert atent("attack", "zoo:toy", *FEW, "--save-images") == 0
    assert "mnist was not fetched (atent data fetch mnist): taking the 2,000 test images" in capsys.readouterr().err
    (rows,) = Path("runs/zoo-toy/attack").glob("*.jsonl")
    header = first_line(rows)
    assert (header["model"], header["data"], header["threat"]) == ("zoo:toy", "mnist-small", "linf:0.3")
    assert header["weights"] == entry_of("zoo:toy").weights
    assert atent("attack", "zoo:toy-smooth", *FEW, "--smooth", 0, "--transfer", "zoo:toy") == 0
    assert atent("show", "zoo:toy", "--json") == 0
    shown = capsys.readouterr().out
    assert entry_of("zoo:toy").weights in shown
    assert atent("report", "zoo:toy", "zoo:toy-smooth", "--out", "both.html") == 0
    assert atent("report", "zoo:toy-smooth", "--out", "one.html") == 0
    page = Path("one.html").read_text()
    printed, verify, _ = Reader(page).text_of("code")
    assert printed.startswith("atent attack zoo:toy-smooth --data mnist-small --attack pgd")
    assert printed.endswith("--smooth 0")
    assert verify == "atent verify runs/zoo-toy-smooth"
    assert "A pretrained network of the package: small-cnn on mnist, trained against l2:0.1" in page
    assert atent("compare", "zoo:toy", "zoo:toy-smooth") == 0
    capsys.readouterr()
    assert atent("verify", "zoo:toy") == 0
    printed = capsys.readouterr().out
    assert "holds: zoo:toy: sha256" in printed
    assert "weights, labels, 8 predictions, 8 points, 8 predictions at the points" in printed
    assert "not checked" not in printed
    export_run("zoo:toy", "hub")
    assert read_json(tmp_path / "hub" / "config.json")["weights_sha256"] == header["weights"]
    assert (tmp_path / "hub" / "README.md").read_text().startswith("---\n")
    assert toys


def test_every_command_in_the_report_of_a_pretrained_network_works_when_pasted(
    toys: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder; the rows are the same, image by image."""
    assert toys
    assert atent("attack", "zoo:toy", *FEW, "--save-images") == 0
    few = ["--n", 20, "--radii", "0,.1", "--examples", 3, "--threads", 1, "--sigma", 0.5]
    assert atent("certify", "zoo:toy", *few) == 0
    assert atent("report", "zoo:toy") == 0
    commands = Reader(Path("report.html").read_text()).text_of("code")
    assert [command.split()[1] for command in commands] == ["attack", "certify", "verify", "report"]
    before = Path("runs").resolve()
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")
    for command in commands:
        assert atent(*shlex.split(command)[1:]) == 0, command
    files = [path.relative_to(before) for path in before.rglob("*.jsonl")]
    assert len(files) == 2
    for file in files:
        texts = [(place / file).read_text().splitlines() for place in (before, Path("runs"))]
        rows = [[line for line in one if '"cost"' not in line] for one in texts]
        assert rows[0] == rows[1], file.name


def test_a_smoothed_network_is_certified_with_its_own_noise(
    toys: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--n", 20, "--radii", "0,.1", "--examples", 3, "--threads", 1]
    assert atent("certify", "zoo:toy-smooth", *few, "--data", "mnist-small", "--out", "results/toy-smooth") == 0
    assert "sigma 0.5" in capsys.readouterr().out
    assert_refused(capsys, ["zoo:toy", "--sigma must"], "certify", "zoo:toy", *few, "--data", "mnist-small")
    index_before = read_index()
    assert toys.fill_cards() == ["zoo:toy: 0 results", "zoo:toy-smooth: 2 results"]
    found, before = entry_of("zoo:toy-smooth"), index_before["toy-smooth"]
    assert found.model_copy(update={"results": ()}) == before
    assert [(one.kind, one.threat, one.images) for one in found.results] == [
        ("certificate", "l2:0", 3),
        ("certificate", "l2:0.1", 3),
    ]
    assert found.headline is None  # the rows are of other data than the training
    assert atent("zoo", "toy-smooth") == 0
    card = capsys.readouterr().out
    assert card.startswith("# toy-smooth\n")
    assert "| certified, smoothed with sigma 0.5, n 20, alpha 0.001 | l2:0.1 | 3 |" in card
    assert "## Licence\n\nOf the weights: mit." in card


def test_rows_become_the_numbers_of_card_and_table(toys: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """And those of other weights do not."""
    toys.add(untrained_run(Path("trained/small"), seed=2, data="mnist-small"), "small")
    assert atent("attack", "zoo:small", *FEW, "--out", "results/small") == 0
    assert atent("attack", "zoo:toy", *FEW, "--out", "results/small", "--seed", 1) == 0
    toys.fill_cards()
    assert [one.method for one in entry_of("zoo:small").results] == ["PGD-1"]
    best, clean = entry_of("zoo:small").headline, entry_of("zoo:small").clean
    assert best is not None
    assert clean is not None
    capsys.readouterr()
    assert atent("zoo") == 0
    table = capsys.readouterr().out
    line = f"{100 * clean:.2f}  {100 * best.robust:.2f} [{100 * best.low:.1f}, {100 * best.high:.1f}]"
    assert re.search(rf"small +mnist-small +linf:0.3 +small-cnn +0.63 +{re.escape(line)}", re.sub(" {2,}", "  ", table))


def test_the_table_fits_a_narrow_terminal(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With results at their widest, here without rows; the names of the attacks are not cut."""
    one = {"variant": None, "data": "mnist", "images": 10_000, "robust": 0.9512, "low": 0.9461, "high": 0.9557}
    index_file = index.FOLDER / "index.json"
    table = read_json(index_file)
    table["toy"]["results"] = [{**one, "kind": "attack", "threat": "linf:0.3", "method": "PGD-40x10", "clean": 0.99}]
    proven = [{**one, "kind": "certificate", "threat": f"l2:{r}", "method": "", "clean": None} for r in ("0", "0.05")]
    table["toy-smooth"]["results"] = proven
    index_file.write_text(json.dumps(table))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert atent("zoo") == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(" ".join(line.split()) == "toy linf:0.3 99.00 95.12 [94.6, 95.6] PGD-40x10" for line in lines)
    assert any(line.rstrip().endswith("[94.6, 95.6]  certified at l2:0.05") for line in lines)
    assert toys


def test_training_starts_from_a_pretrained_network(toys: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert toys
    command = ["train", "demo", "--weights", "zoo:toy", "--out", "runs/tuned", "--threads", 1, *SETTINGS]
    assert atent(*command) == 0
    start = f"starting from zoo:toy (sha256 {entry_of('zoo:toy').weights[:12]})"
    assert start in capsys.readouterr().err
    assert read_json(Path("runs/tuned/recipe.json"))["weights"] == "zoo:toy"
    assert load_tensors(Path("runs/tuned/best.safetensors"))[0]["feature_extractor.conv1.weight"].dtype == torch.float32


# What goes wrong, in one line each.


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("command", [["attack", "zoo:toy"], ["export", "zoo:toy", "--to", "hub"]])
def test_a_damaged_file_is_refused(command: list[str], toys: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    damage(index.FOLDER / "toy.safetensors")
    assert_refused(capsys, ["zoo:toy: ", "toy.safetensors is damaged", "install atent again"], *command)
    (index.FOLDER / "toy.safetensors").unlink()
    assert_refused(capsys, ["zoo:toy: cannot read", "toy.safetensors", "No such file"], *command)
    assert toys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:-20], ["cannot read", "index.json"]),
        (lambda _: "[]", ["index.json", "not a JSON object"]),
        (lambda text: text.replace('"sha256"', '"sha"', 1), ["index.json is damaged", "toy.sha256 is missing"]),
        (lambda text: re.sub(r'"bytes": \d+', '"bytes": -1', text, count=1), ["is damaged", "toy.bytes = -1"]),
    ],
)
def test_a_damaged_index_is_refused(
    change: Callable[[str], str], words: list[str], toys: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    path = index.FOLDER / "index.json"
    path.write_text(change(path.read_text()))
    assert_refused(capsys, words, "zoo")
    assert_refused(capsys, words, "attack", "zoo:toy")
    assert toys


@pytest.mark.parametrize(
    "command",
    [
        ["zoo", "toi"],
        ["attack", "zoo:toi"],
        ["certify", "zoo:toi"],
        ["export", "zoo:toi", "--to", "hub"],
        ["show", "zoo:toi"],
        ["report", "zoo:toi"],
        ["verify", "zoo:toi"],
        ["compare", "zoo:toi", "zoo:toy"],
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    command: list[str], toys: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["unknown network of the zoo 'toi'", "did you mean toy", "known: toy, toy-smooth"], *command)
    assert toys


def test_unknown_weights_end_a_training_before_it_begins(toys: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert toys
    assert atent("train", "demo", "--weights", "zoo:toi", "--out", "runs/tuned", "--threads", 1, *SETTINGS) == 2
    assert "known: toy, toy-smooth" in capsys.readouterr().err


def test_a_network_without_rows_names_the_command_that_makes_them(
    toys: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toys
    for command in ("show", "report", "verify"):
        words = ["no rows in", "`atent attack zoo:toy` makes them", "`atent zoo toy` prints the published ones"]
        assert_refused(capsys, words, command, "zoo:toy")
    assert_refused(capsys, ["--model lenet5 with zoo:toy"], "attack", "zoo:toy", "--model", "lenet5")


def test_verify_names_a_changed_network_of_the_zoo(toys: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("attack", "zoo:toy", *FEW, "--out", "rows") == 0
    toys.add(untrained_run(Path("other"), seed=2), "toy")
    capsys.readouterr()
    assert atent("verify", "rows") == 2
    assert "rows of another network: weights " in capsys.readouterr().out
    damage(index.FOLDER / "toy.safetensors")
    assert atent("verify", "rows") == 2
    assert re.search(r"^does not hold: zoo:toy: \S*toy.safetensors is damaged", capsys.readouterr().out, re.MULTILINE)


def test_full_mnist_is_taken_where_it_is(toys: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is asked for; a folder that the user names is never replaced by the packaged part."""
    assert toys
    monkeypatch.setattr("atent.evaluation.target.is_fetched", lambda _: True)
    with pytest.raises(UserError, match="mnist: no file"):
        open_target("zoo:toy")
    with pytest.raises(UserError, match="mnist: no file"):
        open_target("zoo:toy", data_dir=tmp_path)
    assert len(open_target("zoo:toy", data="mnist-small").images) == len(load_images("mnist-small", "test"))


def test_a_name_of_the_zoo_is_no_function() -> None:
    assert is_zoo("zoo:anything")
    assert not is_zoo("package.zoo:anything")
    assert (ROOT / "src" / "atent" / "zoo" / "index.json").is_file()
