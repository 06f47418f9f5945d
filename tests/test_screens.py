"""What a terminal of 80 or 120 columns shows: nothing is folded inside a word, nothing is cut."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atent.attacks import Fgsm, Pgd
from atent.cli.explain import allowed, fields, methods
from atent.data.images import Images
from atent.evaluation.attack import attack_target
from atent.evaluation.certify import certify_target
from atent.evaluation.estimate import Estimated
from atent.evaluation.sampling import Estimate
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.methods import Count, Fraction, Pull, Start
from atent.models import Shape
from atent.progress import wrapped
from atent.recipe import load_recipe
from atent.report.tables import finished, grouped, result_lines
from atent.report.terminal import print_results, print_verdicts
from atent.report.verdict import checks_in_words
from atent.smoothing.stopping import Smoothing
from atent.storage.checks import kept_checks
from atent.storage.recipe_files import recipe_names, recipe_text
from atent.threat import Threat
from atent.training.lines import epoch_line
from test_cli import atent
from toys import small_network, stand_in

WIDTHS = (80, 120)
SHAPE = Shape((1, 6, 6), 3)
IMAGES = stand_in(SHAPE, 20)


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The output counts as a terminal of so many columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def assert_fits(text: str, width: int) -> list[str]:
    """No line is longer than the terminal, and none is cut."""
    lines = plain(text).splitlines()
    assert lines
    for line in lines:
        assert len(line) <= width, line
        assert "\u2026" not in line
        assert line.startswith("Usage: ") or not line.rstrip().endswith("...")
    return lines


def evaluated(folder: Path, *, name: str = "toy", seeds: tuple[int, ...] = (0,), batch: int = 20) -> Path:
    """Two attacks at two radii, and a certificate, of 20 images."""
    target = Target(small_network(), "abc", "toy", IMAGES, name, None, Path("never"))
    for threat in (Threat.parse("linf:8/255"), Threat.parse("linf:0.1")):
        for attack in (Pgd(steps=2), Fgsm()):
            for seed in seeds:
                attack_target(target, Planned.of(attack, {"name": "a"}, threat), folder, seed=seed, batch=batch)
    certify_target(target, Smoothing(0.25, n=500, radii=(0.0, 0.1)), [(0.0, ""), (0.1, "linf:4/255")], folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluated(tmp_path_factory.mktemp("runs") / "tiny")


COMMANDS = ["", "plan", "train", "attack", "certify", "show", "compare", "report", "verify", "export", "list", "data"]


@pytest.mark.parametrize("command", [*COMMANDS, "data fetch"])
def test_help_fits(command: str, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent(*command.split(), "--help") == 0
    words = " ".join(" ".join(assert_fits(capsys.readouterr().out, width)).split())
    if command in ("attack", "certify"):
        assert "package.module:function" in words


def test_lists_fit_and_no_word_is_lost(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("list") == 0
    shown = " ".join(" ".join(assert_fits(capsys.readouterr().out, width)).split())
    for name in recipe_names():
        assert " ".join(recipe_text(name).splitlines()[0].lstrip("# ").split()) in shown
    assert "https://openreview.net/forum?id=rklOg6EFwS" in shown


@pytest.mark.parametrize("name", methods())
def test_every_field_of_a_method_is_explained(name: str, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    kind, build = methods()[name]
    assert all(all(row[1:]) for row in fields(name, build).values())
    assert atent("show", name) == 0
    printed = "\n".join(assert_fits(capsys.readouterr().out, width))
    for field in fields(name, build):
        assert re.search(rf"^ {field} ", printed, re.MULTILINE)
    how = f"--attack {name} --set " if kind == "attack" else f"--set {kind}."
    assert (how in printed) == bool(fields(name, build))


def test_the_values_of_a_field_in_words() -> None:
    assert allowed(Count) == "integer >= 1"
    assert allowed(Fraction) == "number > 0, <= 1"
    assert allowed(Pull) == "number >= 0 or auto"
    assert allowed(Start).startswith("center, near, ")
    assert allowed(bool) == "true or false"


def test_errors_are_wrapped_between_words(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("train", "dmeo") == 2
    first, *others = assert_fits(capsys.readouterr().err, width)
    assert first.startswith("error: unknown recipe 'dmeo'; did you mean demo? known: ")
    assert others
    assert all(line.startswith("  ") for line in others)
    words = " ".join([first, *others])
    assert all(name in words for name in recipe_names())


def test_a_long_path_is_not_broken() -> None:
    path = "runs/" + 100 * "x"
    assert wrapped(f"left out: {path} is damaged", 80).splitlines() == ["left out:", f"  {path}", "  is damaged"]


def test_show_fits_and_titles_have_what_is_constant(
    run: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    assert atent("show", run.name, "--classes") == 0
    lines = assert_fits(capsys.readouterr().out, width)
    title, _, head = lines[:3]
    assert title.startswith("tiny: 20 toy test images, clean % ")
    assert head.split()[:2] == ["threat", "attack"]
    assert "images" not in head
    assert "clean" not in head
    assert any(line.split()[:2] == ["linf:8/255", "PGD-2"] for line in lines)
    assert any(line.split()[1:2] == ["linf:4/255"] for line in lines)
    assert not any("0.0313" in line for line in lines)


def test_a_table_that_is_too_wide_becomes_several(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / "a-network-with-a-name-of-forty-characters"
    shutil.copytree(run, long)
    found = [*result_lines(finished(run)), *result_lines(finished(long))]
    other = [line._replace(examples=10, attack=f"{line.attack} (loss margin)") for line in found]
    for columns, tables in ((80, 2), (140, 1)):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        print_results([*found, *other])
        lines = assert_fits(capsys.readouterr().out, columns)
        assert sum("toy test images" in line for line in lines) == tables
        assert sum("(loss margin)" in line for line in lines) == len(other)


def test_attacks_that_differ_in_seed_or_batch_can_be_told_apart(tmp_path: Path) -> None:
    evaluated(tmp_path, seeds=(0, 1))
    target = Target(small_network(), "abc", "toy", IMAGES, "toy", None, Path("never"))
    attack_target(target, Planned.of(Pgd(steps=2), {"name": "a"}, Threat.parse("linf:0.1")), tmp_path, batch=7)
    titles = [line.attack for line in result_lines(finished(tmp_path)) if line.threat == "linf:0.1"]
    assert sorted(titles) == sorted(
        [
            "FGSM, seed 0",
            "FGSM, seed 1",
            "PGD-2, seed 0, batch 20",
            "PGD-2, seed 1, batch 20",
            "PGD-2, seed 0, batch 7",
            "worst case",
        ]
    )


def test_the_attack_command_ends_with_its_own_attacks_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("verdict_nets.py").write_text(
        "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))\n"
    )
    rng = np.random.default_rng(0)
    np.savez("three.npz", x=rng.random((300, 4, 4)).astype(np.float32), y=np.arange(300) % 3)
    common = ["attack", "verdict_nets:net", "--data", "three.npz", "--threads", 1, "--out", "run"]
    assert atent(*common, "--threat", "linf:0.2", "--set", "steps=3") == 0
    capsys.readouterr()
    assert atent(*common, "--threat", "linf:8/255", "--suite", "quick", "--checks") == 0
    printed = capsys.readouterr().out
    (group,) = (one for one in finished(Path("run")) if str(one.threat) == "linf:8/255")
    rows = [attack.rows for attack in group.attacks]
    robust = [all(some[k]["robust"] for some in rows) for k in range(len(rows[0]))]
    clean = [row["clean"] == row["label"] for row in rows[0]]
    last = printed.splitlines()[-1]
    share, right = 100 * sum(robust) / len(robust), 100 * sum(clean) / len(clean)
    assert re.fullmatch(
        rf"quick, linf:8/255, {len(rows[0])} test images: {share:.1f} % robust \[[\d.]+, [\d.]+\], "
        rf"{right:.1f} % clean; checks: (silent|\d warnings?)",
        last,
    )
    (kept,) = kept_checks(Path("run"))
    assert str(kept.threat) == "linf:8/255"
    assert last.endswith(f"checks: {checks_in_words(kept.warnings)}")
    assert "PGD-3" not in printed  # an earlier command's
    assert "linf:0.2" not in printed
    assert "linf-8-255" in printed  # the file's name


def test_a_verdict_without_checks_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = finished(run)
    print_verdicts(groups, None, {})
    assert all(line.endswith("checks: not run") for line in capsys.readouterr().out.splitlines())
    print_verdicts(groups, "quick", {Threat.parse("linf:0.1"): ["odd"]})  # the larger radius counts for both
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Checks at linf:0.1:", "  warning: odd."]
    assert all(line.endswith("checks: 1 warning") for line in lines[2:])
    assert grouped(run, []) == []


def test_json_and_csv_have_every_line_of_the_tables(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("show", run, "--json") == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert atent("show", run, "--csv") == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [one["kind"] for one in found] == ["attack", "attack", "worst case"] * 2 + ["certificate"] * 2
    assert [line["kind"] for line in lines] == [one["kind"] for one in found]
    expected = result_lines(finished(run))
    for one, line, row in zip(found, lines, expected, strict=False):
        assert (one["threat"], one["method"], one["images"]) == (row.threat, row.attack, row.examples)
        assert (one["clean"], one["robust"], one["low"], one["high"]) == (row.clean.value, *row.robust)
        assert float(line["robust"]) == row.robust.value
        assert one["kind"] == "worst case" or Path(one["file"]).is_file()
    assert [one["threat"] for one in found[-2:]] == ["l2:0", "linf:4/255"]


def test_the_tables_in_markdown_render(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table begins after an empty line, with its rule in the second line, and has no empty line inside."""
    assert atent("show", run, "--markdown") == 0
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        head, rule, *rows = table.splitlines()
        assert re.fullmatch(r"\|(-+:?\|)+", rule)
        assert rows
        assert {line.count("|") for line in [head, rule, *rows]} == {rule.count("|")}


def test_runs_without_results_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, empty = tmp_path / "trained", tmp_path / "empty"
    trained.mkdir()
    empty.mkdir()
    (trained / "best.safetensors").touch()
    assert atent("show", run, trained, empty) == 0
    captured = capsys.readouterr()
    assert "tiny" in captured.out
    assert captured.err.splitlines() == [
        f"{trained} is trained, but has no finished attack or certificate; next: atent attack {trained}",
        f"no finished attack in {empty}, and no trained network; expected a run folder of atent train or attack",
    ]
    assert atent("show", trained, empty) == 2
    assert capsys.readouterr().err.count("no finished attack") == 2


def test_remove_deletes_a_result_and_what_was_made_of_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(run, mine)
    before = {path for path in mine.rglob("*") if path.is_file()}
    (certificate,) = (mine / "certify").glob("*.jsonl")
    attack = sorted((mine / "attack").glob("*.jsonl"))[0]
    assert atent("show", "--remove", attack, certificate) == 0
    gone = {attack, certificate, certificate.with_suffix(".png")}
    printed = capsys.readouterr().out
    assert all(str(path) in printed for path in gone)
    left = {path for path in mine.rglob("*") if path.is_file()}
    assert {path for path in before - left if not path.name.endswith(".lock")} == gone
    assert len(finished(mine)[0].attacks) + len(finished(mine)[1].attacks) == 3


@pytest.mark.parametrize("name", ["notes.txt", "attack", "attack/notes.jsonl", "elsewhere/rows.jsonl", "nowhere.jsonl"])
def test_remove_refuses_what_is_not_a_result(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(run, mine)
    (mine / "elsewhere").mkdir()
    rows = sorted((mine / "attack").glob("*.jsonl"))[0]
    shutil.copy(rows, mine / "elsewhere" / "rows.jsonl")
    for text in ("notes.txt", "attack/notes.jsonl"):
        (mine / text).write_text("mine\n")
    before = sorted(mine.rglob("*"))
    assert atent("show", "--remove", rows, mine / name) == 2  # and nothing else is removed
    assert "is not a result; allowed: a file of rows" in capsys.readouterr().err
    assert sorted(mine.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pdg"], "did you mean pgd?"),
        (["{run}", "--toml"], "--toml with"),
        (["{run}", "--json", "--csv"], "--json and --csv; allowed: one of them"),
        (["{run}", "--json", "--classes"], "--classes with --json, whose records have no classes"),
        (["pgd", "--csv"], "--csv with the method pgd; allowed: with run folders"),
        (["demo", "--markdown"], "--markdown with the recipe demo; allowed: --toml"),
        (["{run}", "pgd"], "pgd is not a run folder"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], words: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("show", *(argument.format(run=run) for argument in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_recipe_is_printed_with_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("show", "own-images", "--toml") == 0
    assert capsys.readouterr().out == recipe_text("own-images") + "\n"
    assert "# a folder with a folder of images per class" in recipe_text("own-images")


def test_the_data_line_names_equal_classes_once() -> None:
    x, y = torch.zeros(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    assert Images(x, y, ("bag", "coat", "hat")).summary.endswith(": 2 each of bag, coat, hat")
    assert Images(x[1:], y[1:], ("bag", "coat", "hat")).summary.endswith(": bag 1, coat 2, hat 2")


@pytest.mark.parametrize("threat", ["linf:8/255", "linf:0.3"])
def test_the_verdict_of_a_whole_test_set_fits_80_columns(threat: str) -> None:
    estimate = Estimate(92.7, 91.9, 93.4)
    one = Estimated("run", "abc", "strong", "mnist", threat, 0.95, 10_000, 9_411, 1_150, 5, estimate)
    assert str(one) == f"strong, {threat}, whole test set 92.70 [91.90, 93.40] (10,000 + 1,150 images)"
    assert len(str(one)) <= 80


def test_the_line_of_an_epoch_fits_80_columns() -> None:
    recipe = load_recipe("demo", {"epochs": 120})
    row = {
        "epoch": 110,
        "loss": 2.3456,
        "clean": 0.9665,
        "robust": 0.8,
        "radius": 0.3,
        "seconds": 12345.6,
        "best": True,
    }
    line = epoch_line(row, recipe)
    assert line == "epoch 110/120: loss 2.346, clean 96.7, robust 80.0, radius 0.300, 12346 s, best"
    assert len(line) <= 80
    del row["clean"], row["robust"]
    assert epoch_line(row, recipe) == "epoch 110/120: loss 2.346, radius 0.300, 12346 s, best"
