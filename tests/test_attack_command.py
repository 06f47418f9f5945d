"""`atent attack` as a user runs it: targets, suites, radii, engines, images, checks and mistakes."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atent.attacks import make_attack
from atent.attacks.protocols import title_of
from atent.evaluation.suites import SUITES, suite_attacks
from atent.report.tables import results
from atent.threat import Threat
from test_cli import assert_refused, atent
from toys import generator, small_batch, small_network

NETWORKS = """
import torch
from torch import nn

def linear(scale=1.0):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with torch.no_grad():
        network[1].weight.mul_(scale)
    return network

def shaped(shape=None):
    assert (shape.image, shape.classes) == ((1, 28, 28), 10)
    return linear()

class Two(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10], x

def two():
    return Two()

def spoilt():
    return linear(float("nan"))

def number():
    return 3

def trained():
    network = linear()
    from atent.data import load
    x, y = load("mnist-small", "train").batch(slice(None))
    for _ in range(10):
        nn.functional.cross_entropy(network(x), y).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.5 * parameter.grad
                parameter.grad = None
    return network

class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = trained()
    def forward(self, x):
        return self.network((8 * x).round() / 8)

def quantized():
    return Quantized()
"""
COMMON = ["--data", "mnist-small", "--threads", "1"]
LINEAR = ["my_networks:linear", *COMMON, "--threat", "linf:0.1"]


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", ["linear", "shaped"])
def test_a_function_is_a_target(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["attack", f"my_networks:{name}", *COMMON, "--threat", "linf:0.1", "--examples", 60, "--set", "steps=2"]
    assert atent(*command) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith(f"{name}-")
    captured = capsys.readouterr()
    assert f"{folder.name}" in captured.out
    assert "images forward" in captured.out
    assert f"warning: my_networks:{name}: only" in captured.err  # it is not trained
    assert atent("show", folder, "--classes") == 0
    assert "by class, linf:0.1, PGD-2" in capsys.readouterr().out


def test_a_suite_over_radii_with_images_and_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    radii = ["--threat", "linf:0.02", "--threat", "linf:0.01", "--threat", "l2:0.1"]
    options = [
        "--suite",
        "quick",
        "--examples",
        20,
        "--classes",
        "--save-images",
        "--out",
        tmp_path / "out",
        "--checks",
    ]
    assert atent("attack", "my_networks:linear", *COMMON, *radii, *options) == 0
    lines = results(tmp_path / "out")
    assert [line.threat for line in lines] == ["l2:0.1"] * 3 + ["linf:0.01"] * 3 + ["linf:0.02"] * 3
    printed = capsys.readouterr().out
    assert "worst case of 2 attacks" in printed
    assert "Checks at linf:0.02" in printed
    assert "Checks at linf:0.01" not in printed
    for end in ("jsonl", "npz", "png"):
        assert len(list((tmp_path / "out" / "attack").glob(f"*.{end}"))) == 6


@pytest.mark.parametrize("other", ["my_networks:trained", "{weights}"])
def test_points_of_another_network_are_tried(other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A weights file is of the target's model: here a function's."""
    weights = tmp_path / "other.pt"
    torch.save({f"network.{name}": tensor for name, tensor in trained_weights().items()}, weights)
    options = [
        "--threat",
        "linf:0.1",
        "--examples",
        50,
        "--set",
        "steps=2",
        "--transfer",
        other.format(weights=weights),
    ]
    assert atent("attack", "my_networks:quantized", *COMMON, *options) == 0
    printed = capsys.readouterr().out
    assert "Checks at linf:0.1" in printed
    # The weights file's network is quantized too, so that points made on it are as bad as the target's own.
    assert ("warning: points that PGD-20 made on the other network break" in printed) is other.startswith("my_networks")


def trained_weights() -> dict[str, Tensor]:
    weights: dict[str, Tensor] = importlib.import_module("my_networks").trained().state_dict()
    return weights


def test_an_engine_is_run_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--threat", "linf:0.1", "--examples", 10, "--out", tmp_path / "out"]
    attack = ["--attack", "foolbox:LinfDeepFoolAttack", "--set", "steps=2"]
    assert atent("attack", "my_networks:linear", *COMMON, *options, *attack) == 0
    assert "foolbox LinfDeepFoolAttack (steps 2)" in capsys.readouterr().out
    (file,) = (tmp_path / "out" / "attack").glob("*.jsonl")
    header, row = map(json.loads, file.read_text().splitlines()[:2])
    assert header["attack"]["overshoot"] == 0.02
    assert "distance" in row


@pytest.mark.parametrize("threat", ["linf:0.3", "linf:8/255", "l2:2"])
@pytest.mark.parametrize("name", SUITES)
def test_every_suite_can_be_made(name: str, threat: str) -> None:
    attacks = suite_attacks(name, Threat.parse(threat))
    assert len({title_of(make_attack(settings)) for settings in attacks}) == len(attacks)


def test_the_papers_step_is_named_where_the_paper_names_it() -> None:
    steps = [
        [s["step"] for s in suite_attacks("paper", Threat("linf", eps)) if "step" in s] for eps in (0.3, 0.031, 0.1)
    ]
    assert steps == [[0.01], [0.003], []]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my_networks:linear"], ["--data"]),
        (["my_networks:linear", *COMMON], ["--threat"]),
        (["my_networks:linear", *COMMON, "--model", "lenet5", "--threat", "linf:0.1"], ["--model", "lenet5"]),
        (["my_networks:nothing", *COMMON, "--threat", "linf:0.1"], ["my_networks:nothing", "cannot import"]),
        (["my_networks:number", *COMMON, "--threat", "linf:0.1"], ["number", "int", "torch.nn.Module"]),
        (["my_networks:two", *COMMON, "--threat", "linf:0.1"], ["tuple", "logits of shape (2, 10)"]),
        (["my_networks:spoilt", *COMMON, "--threat", "linf:0.1"], ["NaN"]),
        (["my_networks:linear", *COMMON, "--threat", "linf:-0.1"], ["-0.1", ">= 0"]),
        (["my_networks:linear", *COMMON, "--threat", "linf:0.1", "--threat", "l7:2"], ["l7:2", "linf"]),
        (["my_networks:linear", *COMMON, "--threat", "linf:0.1", "--examples", "0"], ["--examples 0", "1 to 2000"]),
        (["my_networks:linear", *COMMON, "--threat", "linf:0.1", "--suite", "huge"], ["huge", "quick", "strong"]),
        (["my_networks:linear", *COMMON, "--suite", "quick", "--attack", "pgd"], ["--suite quick", "--attack"]),
        (["my_networks:linear", *COMMON, "--suite", "quick", "--set", "steps=3"], ["--suite quick", "--set"]),
        ([*LINEAR, "--transfer", "nowhere"], ["no weights at nowhere"]),
        ([*LINEAR, "--transfer", "my_networks:nothing"], ["my_networks:nothing", "cannot import"]),
        ([*LINEAR, "--transfer", "my_networks:two"], ["tuple", "logits of shape (2, 10)"]),
        ([*LINEAR, "--transfer", "my_networks.py"], ["my_networks.py", ".safetensors"]),
        ([*LINEAR, "--transfer", "my_networks:linear", "--no-checks"], ["--transfer", "--no-checks"]),
        ([*LINEAR, "--attack", "smooth-pgd"], ["smooth-pgd", "not smoothed", "--smooth"]),
        ([*LINEAR, "--attack", "smooth-pgd", "--smooth", "0"], ["not smoothed", "--smooth"]),
        ([*LINEAR, "--smooth", "nan"], ["sigma nan"]),
        ([*LINEAR, "--attack", "cw-l2"], ["cw-l2", "linf:0.1", "l2 threats"]),
        (["my_networks:linear", *COMMON, "--attack", "torchattacks:PGD"], ["torchattacks:PGD"]),
        (["my_networks:linear", *COMMON, "--attack", "foolbox:Magic"], ["Magic", "LinfPGD"]),
        (["my_networks:linear", *COMMON, "--attack", "foolbox:LinfPGD", "--set", "stepz=1"], ["stepz", "rel_stepsize"]),
    ],
)
def test_mistakes_get_one_clear_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, words, "attack", *arguments)


@pytest.mark.parametrize(
    ("classes", "losses"),
    [(2, [None, None, None]), (3, [None, None, "dlr", None]), (4, [None, None, "dlr-targeted", None])],
)
def test_few_classes_leave_out_the_losses_that_need_more(classes: int, losses: list[str | None]) -> None:
    found = suite_attacks("strong", Threat("linf", 0.1), classes=classes)
    assert [settings.get("loss") for settings in found] == losses
    network = small_network(classes=classes, dropout=0)
    x, y = small_batch(4, classes)
    for settings in found:
        attack = make_attack({**settings, **({"queries": 5} if settings["name"] == "square" else {"steps": 2})})
        attack(network, x, y, Threat("linf", 0.1), generator())
