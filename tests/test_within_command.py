"""`atent attack --within` and `--claim` as a user runs them: the verdict, and mistakes."""

import re
from pathlib import Path

import numpy as np
import pytest

from test_cli import assert_refused, atent

NETWORK = """
import torch
from torch import nn

def trained():
    from atent.data import load

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    x, y = load("mnist-small", "train").batch(slice(1000))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a function that makes a network for mnist-small."""
    (tmp_path / "grey_networks.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "grey_networks:trained"


COMMON = ["--data", "mnist-small", "--threat", "linf:0.02", "--threads", "1"]
VERDICT = r"whole test set (\d+\.\d\d) \[(\d+\.\d\d), (\d+\.\d\d)\] \(2,000 \+ (\d+) images\)"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--attack", "square", "--set", "queries=3"], "square (queries 3)"),
        (["--suite", "quick"], "quick"),
    ],
)
def test_the_command_ends_with_a_verdict_and_show_repeats_it(
    options: list[str], name: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atent("attack", network, *COMMON, *options, "--within", 8, "--out", tmp_path / "run") == 0
    printed = capsys.readouterr().out
    found = re.fullmatch(rf"{re.escape(name)}, linf:0.02, {VERDICT}", printed.splitlines()[-1])
    assert found, printed
    low, high = float(found[2]), float(found[3])
    assert low <= float(found[1]) <= high <= low + 16
    assert atent("show", tmp_path / "run") == 0
    assert found[0] in capsys.readouterr().out


def test_a_claim_without_survivors_is_refuted_and_shown(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "mnist-small", "--threat", "linf:200/255", "--suite", "quick", "--claim", 90]
    assert atent("attack", network, *options, "--threads", 1, "--out", tmp_path / "run") == 0
    *_, refuted, verdict = capsys.readouterr().out.splitlines()
    assert refuted == "at least 90 %: refuted"
    assert verdict == "quick, linf:200/255, whole test set 0.00 [0.00, 0.00] (2,000 + 0 images)"
    assert atent("show", tmp_path / "run") == 0
    assert verdict in capsys.readouterr().out


def test_an_attack_for_more_classes_is_refused_before_the_first_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "two_classes.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
    )
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "two.npz", x=rng.random((40, 4, 4)), y=np.arange(40) % 2)
    command = ["attack", "two_classes:net", "--data", "two.npz", "--threat", "linf:0.1", "--threads", 1]
    inside = "attacks=[{name='apgd', loss='dlr'}]"
    for attack, needed in ((["apgd", "loss=dlr-targeted"], 4), (["pgd", "loss=dlr"], 3), (["cascade", inside], 3)):
        for goal in (["--within", 1], []):
            words = [f"needs {needed} classes; the data has 2"]
            assert_refused(capsys, words, *command, "--attack", attack[0], "--set", attack[1], *goal)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--within", "0"], "within 0; allowed: points of accuracy above 0"),
        (["--within", "nan"], "within nan; allowed"),
        (["--claim", "100"], "claim 100; allowed: percent above 0 and below 100"),
        (["--claim", "-5"], "claim -5; allowed"),
        (["--within", "1", "--confidence", "1"], "confidence 1; allowed: above 0 and below 1"),
        (["--within", "1", "--save-images"], "--save-images with --within or --claim"),
        (["--confidence", ".9"], "--confidence 0.9 without --within and --claim"),
        (["--claim", "9", "--examples", "20"], "--examples with --within or --claim"),
        (["--within", "1", "--smooth", ".1"], "randomized or smoothed"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    options: list[str], words: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atent("attack", network, *COMMON, *options, "--out", tmp_path / "run") == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()
