"""`atent certify` as a user runs it: rows, resuming, tables, the curve, and mistakes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scipy import stats

from atent.errors import Interrupted
from atent.evaluation.certify import certify_target, named_radii
from atent.evaluation.target import Target
from atent.models import Shape
from atent.smoothing.bounds import ABSTAIN
from atent.smoothing.stopping import Smoothing
from atent.storage.certificates import certified, curve, read_certified
from atent.storage.row_file import RowFile
from atent.threat import Threat
from test_cli import assert_refused, atent
from toys import small_network, stand_in

NETWORKS = """
import torch
from torch import nn

def linear(scale=1.0):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with torch.no_grad():
        network[1].weight.mul_(scale)
    return network

class Shaky(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10] + torch.rand(len(x), 10)

def shaky():
    return Shaky()

def smoothed():
    from atent.smoothing import Smoothed
    return Smoothed(linear(), 0.1)

def spoilt():
    return linear(float("nan"))
"""
COMMON = ["--data", "mnist-small", "--threads", "1"]
IMAGES = stand_in(Shape((1, 6, 6), 3), 12)
RADII = [(0.0, ""), (0.1, ""), (0.15, "linf:0.025")]
EARLY = Smoothing(0.25, n=1000, radii=(0.0, 0.1, 0.15))


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smooth_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(folder: Path, how: Smoothing = EARLY, batch: int = 500) -> Path:
    target = Target(small_network(), "abc", "toy", IMAGES, "toy", None, Path("never"))
    return certify_target(target, how, RADII, folder, batch=batch)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, path.read_text().splitlines()) if "index" in row]


def test_a_table_with_rows_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--sigma", 0.1, "--n", 1000, "--radii", "0,.05", "--threat", "linf:0.002", "--every", 7, "--examples", 20]
    assert atent("certify", "smooth_networks:linear", *COMMON, *asked, "--out", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert "allow radii up to 0.2463" in captured.err
    assert "linf:0.002" in captured.out
    assert "by the norm bound" in captured.out
    (one,) = certified(tmp_path / "out")
    assert [row["index"] for row in one.rows] == list(range(0, 140, 7))
    assert [radius for radius, _ in one.radii] == pytest.approx([0, 0.05, 0.002 * 28])
    for row in one.rows:
        assert row["draws"] == 100 + sum(row["counts"].values()) <= 1100
        assert row["prediction"] in (row["top"], ABSTAIN)
        assert row["radius"] in [radius for radius, _ in one.radii]
    assert one.header["weights"]
    right = [row["prediction"] == row["label"] for row in one.rows]
    assert one.accuracy(0.0).value == sum(right) / 20
    with Image.open(one.path.with_suffix(".png")) as picture:
        assert picture.getcolors(10_000) is not None
        assert (31, 90, 160) in [color for _, color in picture.getcolors(10_000) or []]
    assert atent("show", tmp_path / "out") == 0
    assert str(one.accuracy(0.05)) in capsys.readouterr().out
    assert atent("show", tmp_path / "out", "--markdown") == 0
    assert f"| out | mnist-small | 0.1 | 1,000 | 20 | 0.05 |  | {one.accuracy(0.05)} |" in capsys.readouterr().out


def test_exact_n_is_cohens_procedure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--sigma", 0.1, "--n", 500, "--radii", "0,.05", "--examples", 20, "--exact-n"]
    assert atent("certify", "smooth_networks:linear", *COMMON, *asked, "--out", tmp_path / "out") == 0
    assert "average certified radius" in capsys.readouterr().out
    (one,) = certified(tmp_path / "out")
    for row in one.rows:
        agreed = row["counts"].get(str(row["top"]), 0)
        p = stats.beta.ppf(0.001, agreed, 500 - agreed + 1)
        assert row["draws"] == 600
        assert row["prediction"] == (row["top"] if p >= 0.5 else ABSTAIN)
        assert row["radius"] == pytest.approx(0.1 * stats.norm.ppf(p) if p >= 0.5 else 0, abs=1e-9)
    right = [row["radius"] for row in one.rows if row["prediction"] == row["label"]]
    assert one.mean_radius == pytest.approx(sum(right) / 20)
    shares = curve(one)
    assert shares == sorted(shares, key=lambda point: (point[0], -point[1]))
    assert shares[0] == (0.0, one.accuracy(0.0).value)


@pytest.mark.parametrize("how", [EARLY, Smoothing(0.25, n=350)], ids=["early", "exact-n"])
@pytest.mark.parametrize("kept", [1, 3, 7, 11])
def test_a_killed_certification_goes_on_and_ends_with_the_same_rows(how: Smoothing, kept: int, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", how)
    lines = whole.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut" / "certify" / whole.name
    cut.parent.mkdir(parents=True)
    cut.write_text("".join(lines[:kept]) + lines[kept][:5])
    assert run(tmp_path / "cut", how) == cut
    assert rows_of(cut) == rows_of(whole)
    assert rows_of(run(tmp_path / "other", how, batch=100)) == rows_of(whole)
    before = cut.read_bytes()
    run(tmp_path / "cut", how)  # finished: nothing is done again
    assert cut.read_bytes() == before


def test_a_signal_stops_it_between_two_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, append = run(tmp_path / "whole", batch=100), RowFile.append

    def interrupted(*arguments: Any) -> None:
        append(*arguments)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RowFile, "append", interrupted)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", batch=100)
    monkeypatch.undo()
    (cut,) = (tmp_path / "cut" / "certify").glob("*.jsonl")
    assert 0 < len(rows_of(cut)) < 12
    assert certified(tmp_path / "cut") == []  # it is not finished
    assert rows_of(run(tmp_path / "cut", batch=100)) == rows_of(whole)
    assert read_certified(cut).cost.forward == sum(row["draws"] for row in rows_of(whole))


def test_a_linf_radius_is_covered_by_an_l2_ball() -> None:
    assert named_radii([0.5, 0.0], [Threat("linf", 0.1), Threat("l2", 0.3)], 100) == [
        (0.0, ""),
        (0.3, "l2:0.3"),
        (0.5, ""),
        (1.0, "linf:0.1"),
    ]


LINEAR = ["smooth_networks:linear", *COMMON]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (LINEAR, ["--sigma"]),
        ([*LINEAR, "--sigma", "0"], ["sigma 0", "> 0"]),
        ([*LINEAR, "--sigma", "-.5"], ["sigma -0.5", "> 0"]),
        ([*LINEAR, "--sigma", "nan"], ["sigma nan"]),
        ([*LINEAR, "--sigma", ".5", "--n", "0"], ["n 0", "1 or more"]),
        ([*LINEAR, "--sigma", ".5", "--n0", "0"], ["n0 0", "1 or more"]),
        ([*LINEAR, "--sigma", ".5", "--alpha", "0"], ["alpha 0", "above 0"]),
        ([*LINEAR, "--sigma", ".5", "--alpha", "1"], ["alpha 1", "below 1"]),
        ([*LINEAR, "--sigma", ".5", "--n", "9"], ["n 9", "can only abstain"]),
        ([*LINEAR, "--sigma", ".5", "--radii", "0;1"], ["0;1", "commas"]),
        ([*LINEAR, "--sigma", ".5", "--radii=-1"], ["--radii -1", ">= 0"]),
        ([*LINEAR, "--sigma", ".5", "--radii=.5,nan", "--exact-n"], ["--radii .5,nan", ">= 0"]),
        ([*LINEAR, "--sigma", ".5", "--threat", "l3:1"], ["l3:1", "linf"]),
        ([*LINEAR, "--sigma", ".12", "--n", "47000", "--radii", ".435"], ["0.435", "cannot be proven", "47,808"]),
        ([*LINEAR, "--sigma", ".12", "--n", "47000", "--threat", "linf:0.1"], ["2.8", "cannot be proven"]),
        ([*LINEAR, "--sigma", ".5", "--examples", "2001"], ["2001", "1 to 2000"]),
        ([*LINEAR, "--sigma", ".5", "--every", "2", "--examples", "1001"], ["1001", "1 to 1000"]),
        (["smooth_networks:shaky", *COMMON, "--sigma", ".5"], ["two passes", "randomized"]),
        (["smooth_networks:smoothed", *COMMON, "--sigma", ".5"], ["smoothed already"]),
        (["smooth_networks:spoilt", *COMMON, "--sigma", ".5"], ["NaN"]),
        (["smooth_networks:linear", "--sigma", ".5"], ["--data"]),
    ],
)
def test_mistakes_get_one_clear_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, words, "certify", *arguments)
