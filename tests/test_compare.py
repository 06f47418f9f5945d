"""Runs compared image by image: the interval, McNemar's exact p, what is paired with what, and the command."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from atent.errors import UserError
from atent.report.compare import compare
from atent.report.differences import comparison_csv, comparison_latex, comparison_markdown, signed
from atent.report.paired import Paired
from atent.storage.row_file import RowFile
from atent.storage.row_format import Cost
from atent.storage.rows import ATTACK
from test_cli import assert_refused, atent

HEADER = {
    "label": "PGD-20",
    "attack": {"name": "pgd", "steps": 20, "step": None},
    "threat": "linf:0.3",
    "data": "toy",
    "examples": 100,
    "seed": 0,
    "batch": 250,
    "model": "net",
    "weights": "aaaa",
}


def write(folder: Path, robust: Any, **changes: object) -> Path:
    """Rows of as many images as `robust` has; every image is right without an attack."""
    verdicts = [bool(one) for one in robust]
    header = {**HEADER, "examples": len(verdicts), **changes}
    file = RowFile.of(ATTACK, folder, header)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.resume(header)
    rows = [
        {"index": k, "label": k % 3, "clean": k % 3, "adversarial": (k + (not one)) % 3, "size": 0.3, "robust": one}
        for k, one in enumerate(verdicts)
    ]
    file.append(rows, Cost(1, 1, 1.0))
    return file.path


@pytest.mark.parametrize(
    ("counts", "low", "high", "digits"),
    [
        # Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33, 2850: airway hyper-responsiveness.
        ((1, 1, 7, 12), -0.507, -0.026, 3),
        # Newcombe and Altman in Statistics with Confidence, 2nd edition, chapter 6.
        ((14, 5, 0, 22), 0.01, 0.23, 2),
    ],
)
def test_the_interval_of_published_examples(
    counts: tuple[int, int, int, int], low: float, high: float, digits: int
) -> None:
    """The papers subtract the second share from the first."""
    found = Paired(*counts).difference
    assert found.value == pytest.approx((counts[2] - counts[1]) / sum(counts))
    assert (round(-found.high, digits), round(-found.low, digits)) == (low, high)


def test_the_interval_is_turned_around_with_the_pair() -> None:
    one, other = Paired(30, 9, 4, 7).difference, Paired(30, 4, 9, 7).difference
    assert one == pytest.approx((-other.value, -other.high, -other.low))


def test_the_interval_covers_the_truth() -> None:
    """Exact coverage: a sum over all tables of 12 images. Newcombe's method is approximate, and cautious for so few."""
    images, covered = 12, []
    tables = [
        (a, b, c, images - a - b - c)
        for a in range(images + 1)
        for b in range(images + 1 - a)
        for c in range(images + 1 - a - b)
    ]
    ends = np.array([Paired(*table).difference[1:] for table in tables])
    for shares in ([0.5, 0.1, 0.2, 0.2], [0.2, 0.2, 0.3, 0.3], [0.3, 0.3, 0.1, 0.3], [0.1, 0.4, 0.4, 0.1]):
        chance = stats.multinomial.pmf(np.array(tables), images, shares)
        truth = shares[2] - shares[1]
        covered.append(float(chance[(ends[:, 0] <= truth) & (truth <= ends[:, 1])].sum()))
    assert all(0.93 < chance < 0.98 for chance in covered), covered


@pytest.mark.parametrize("first", [0, 1, 6, 40])
@pytest.mark.parametrize("second", [0, 1, 7, 16, 300])
def test_p_is_that_of_the_binomial_test(first: int, second: int) -> None:
    expected = stats.binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    assert Paired(50, first, second, 10).p == pytest.approx(expected)


def test_p_of_published_examples() -> None:
    """Fagerland et al. 2013, https://doi.org/10.1186/1471-2288-13-91: exact conditional test, 0.0703 and 0.0525."""
    assert round(Paired(1, 1, 7, 12).p, 4) == 0.0703
    assert round(Paired(59, 6, 16, 80).p, 4) == 0.0525


def test_only_images_of_both_count(tmp_path: Path) -> None:
    write(tmp_path / "one", [True] * 30 + [False] * 70)
    write(tmp_path / "two", [True] * 20 + [False] * 30)
    clean, found = compare([tmp_path / "one", tmp_path / "two"]).differences
    assert clean.counts == Paired(50, 0, 0, 0)
    assert found.counts == Paired(20, 10, 0, 20)
    assert found.notes == ("50 images of both; 100 and 50 were measured",)


def test_the_worst_case_is_over_the_attacks_that_both_have(tmp_path: Path) -> None:
    for name, weights in (("one", "aaaa"), ("two", "bbbb")):
        write(tmp_path / name, [True, True, False, True], weights=weights)
        write(
            tmp_path / name, [True, False, True, name == "one"], label="FGSM", attack={"name": "fgsm"}, weights=weights
        )
    write(tmp_path / "one", [False] * 4, label="strong", attack={"name": "cascade"})
    *_, worst = compare([tmp_path / "one", tmp_path / "two"]).differences
    assert worst.counts == Paired(1, 1, 0, 2)
    assert worst.notes == ("worst case of FGSM, PGD-20",)


def test_the_worst_case_names_the_settings_in_which_its_pairs_differ(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        write(tmp_path / name, [True] * 4)
        write(tmp_path / name, [True] * 4, label="FGSM", attack={"name": "fgsm"}, seed=seed)
    *_, worst = compare([tmp_path / "one", tmp_path / "two"]).differences
    assert worst.notes == ("worst case of FGSM, PGD-20", "FGSM: seed 0 and 1")


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    write(tmp_path / "one", [True] * 4)
    changed = {"attack": {"name": "pgd", "steps": 20, "step": 0.01}, "seed": 3, "threat": "linf:0.30"}
    write(tmp_path / "two", [False] * 4, **changed)
    *_, found = compare([tmp_path / "one", tmp_path / "two"]).differences
    assert found.notes == ("seed 0 and 3", "attack step None and 0.01")
    assert found.key.threat == "linf:0.3"


def test_of_several_files_the_most_alike_are_paired(tmp_path: Path) -> None:
    for seed, robust in ((0, True), (1, False)):
        write(tmp_path / "one", [robust] * 4, seed=seed)
    write(tmp_path / "two", [True] * 4, seed=1)
    *_, found = compare([tmp_path / "one", tmp_path / "two"]).differences
    assert found.notes == ()
    assert found.counts == Paired(0, 0, 4, 0)


def test_other_images_of_the_same_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one", [True] * 4)
    path = write(tmp_path / "two", [True] * 4)
    lines = path.read_text().splitlines()
    rows = [json.loads(line) | {"label": 2, "clean": 2} for line in lines[1:5]]
    path.unlink()
    file = RowFile.of(ATTACK, tmp_path / "two", {**HEADER, "examples": 4})
    file.resume({**HEADER, "examples": 4})
    file.append(rows, Cost())
    with pytest.raises(UserError, match="toy is not the same data in both: image 0 has label 0 in one and 2"):
        compare([tmp_path / "one", tmp_path / "two"])


@pytest.fixture
def named(tmp_path: Path) -> list[Path]:
    """Two runs whose names are formulas and markup."""
    folders = [tmp_path / "=1+1", tmp_path / "<b>|$x_1$"]
    for folder, share in zip(folders, (3, 2), strict=True):
        write(folder, [k % 5 < share for k in range(40)], label="@attack_{1}")
    return folders


def test_no_cell_is_a_formula_and_every_number_is_one(named: list[Path]) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_csv(compare(named)))))
    assert [(line["reference"], line["measure"]) for line in lines] == [("'=1+1", "clean"), ("'=1+1", "'@attack_{1}")]
    assert float(lines[1]["difference"]) == pytest.approx(-0.2)
    assert float(lines[1]["p"]) == pytest.approx(stats.binomtest(0, 8).pvalue)


def test_names_are_escaped_in_markdown_and_latex(named: list[Path]) -> None:
    found = compare(named)
    _, rule, *rows = comparison_markdown(found).split("\n\n")[0].splitlines()
    assert all(row.replace("\\|", "").count("|") == rule.count("|") for row in rows)
    assert r"\<b>\|$x\_1$" in rows[0]
    assert r"\textless{}b\textgreater{}\textbar{}\$x\_1\$ & toy" in comparison_latex(found)
    assert "@attack\\_\\{1\\}" in comparison_latex(found)


@pytest.mark.parametrize("form", [[], ["--markdown"], ["--latex"], ["--csv"]])
def test_the_command_prints_the_difference(
    form: list[str], named: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert atent("compare", *named, *form) == 0
    printed = capsys.readouterr().out
    assert "-0.2" in printed if form == ["--csv"] else signed(Paired(16, 8, 0, 16).difference) in printed
    assert atent("compare", named[0], "--against", named[1], *form) == 0
    printed = capsys.readouterr().out
    assert ",0.2" in printed if form == ["--csv"] else "+20.00 [+" in printed


def test_bad_comparisons_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("one"), [True] * 4)
    write(Path("two"), [True] * 4, data="other")
    Path("empty").mkdir()
    assert_refused(capsys, ["one alone", "two run folders"], "compare", "one")
    assert_refused(capsys, ["one alone"], "compare", "one", "one")
    assert_refused(capsys, ["nowhere: there is no such folder"], "compare", "one", "nowhere")
    assert_refused(capsys, ["PGD-20 linf:0.3 on toy", "on other", "nothing of it is shared"], "compare", "one", "two")
    assert_refused(capsys, ["empty has no finished attack"], "compare", "empty", "one")
    assert_refused(capsys, ["--latex and --csv"], "compare", "one", "two", "--latex", "--csv")


def test_a_run_that_shares_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in (("one", "toy"), ("two", "toy"), ("three", "other")):
        write(Path(name), [True] * 4, data=data)
    shutil.copytree("one", "deep/one")
    assert atent("compare", "one", "two", "three", "deep/one") == 0
    printed = capsys.readouterr().out
    assert "three has PGD-20 linf:0.3 on other; nothing of it is shared." in printed
    assert "deep/one compared with one: 4 toy test images" in printed  # not two networks called one
    assert "have the same weights" in printed
