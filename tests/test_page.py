"""The report as a page: well-formed and self-contained whatever the run folders hold, with the numbers of the rows."""

import base64
import io
import json
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from atent.cli import app
from atent.page.commands import FLAGS, evaluation_commands, training_commands
from atent.page.curves import against_eps
from atent.page.gather import gather
from atent.page.sections import page_of
from atent.page.svg import SERIES, canvas
from atent.page.write import render, write_report
from atent.recipe import load_recipe
from atent.storage.checks import keep_checks
from atent.storage.points import join_points, keep_points
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK, Rate, robust_rate
from attacked_run import attacked_run
from html_check import Reader, check_page
from test_cli import assert_refused, atent
from test_compare import HEADER, write

HOSTILE = "$\\frac{1}$<script>alert(1)</script>&\"'=1+1"


def trained(folder: Path, epochs: int = 3, **recipe: object) -> Path:
    """A folder as a training leaves it, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {"data": "toy", "model": "small-cnn", "threat": "linf:0.3", "epochs": 3, "defense": {"name": "atent"}}
    (folder / "recipe.json").write_text(json.dumps({**table, **recipe}))
    start = {"command": "atent train demo", "atent": "0.1", "torch": "2"}
    (folder / "environment.json").write_text(json.dumps({"starts": [start]}))
    lines = [
        {"epoch": k, "loss": 2 / k, "train_robust": 0.2 * k, "clean": 0.3 * k, "robust": 0.25 * k, "best": k == 2}
        for k in range(1, epochs + 1)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def read(*folders: Path) -> Reader:
    return check_page(render(page_of(gather(folders))))


def test_a_run_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    attacked_run(tmp_path)
    header = RowFile(ATTACK, next(Path("runs/tiny/attack").glob("pgd*linf*.jsonl"))).read().header
    keep_checks(Path("runs/tiny"), header, ["one step breaks more than twenty"])
    assert atent("report", "runs/tiny") == 0
    page = check_page(Path("report.html").read_text(encoding="utf-8"))
    titles = page.text_of("h2")
    assert titles == [
        "Summary",
        "Accuracy under attack",
        "Certified accuracy",
        "Two-sided accuracy",
        "Robustness by class",
        "Attacked images",
        "Training",
        "Checks and warnings",
        "Cost",
        "Repeat it",
    ]
    assert any("one step breaks more than twenty" in text for text in page.text_of("p"))
    assert 3 <= len(page.all("img")) <= 3 * 24
    cells = set(page.text_of("td"))
    for path in Path("runs/tiny/attack").glob("*.jsonl"):
        assert str(robust_rate(RowFile(ATTACK, path).read().rows)) in cells
    assert "defense.steps" in page.text_of("th")  # every setting, behind a fold
    assert list(tmp_path.glob(".*.part")) == []


def test_every_command_works_when_it_is_pasted_and_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder, through a shell's own splitting; weights and rows are the same, image by image."""
    first = attacked_run(tmp_path)
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path)
    commands = [text for text in read(Path("runs/tiny")).text_of("code") if not text.startswith("atent report")]
    assert [command.split()[1] for command in commands] == ["train", *["attack"] * 3, "certify", "verify"]
    monkeypatch.chdir(tmp_path / "again")
    for command in commands:
        assert atent(*shlex.split(command)[1:]) == 0, command
    for path in first.glob("*/*.jsonl"):
        again = Path("runs/tiny") / path.relative_to(first)
        rows = [[line for line in one.read_text().splitlines() if '"cost"' not in line] for one in (path, again)]
        assert rows[0] == rows[1], path.name


def test_commands_of_rows_alone_name_what_they_need(tmp_path: Path) -> None:
    """Weights from elsewhere are $WEIGHTS; a script's training is repeated from its recipe; quotes survive a shell."""
    attack = {"name": "cascade", "attacks": [{"name": "pgd", "steps": 2, "step": None, "loss": "cross-entropy"}]}
    write(tmp_path / "rows", [True] * 4, model="small-cnn", data="my data", attack=attack, seed=3, batch=7)
    (found,) = gather([tmp_path / "rows"])
    (command,) = evaluation_commands(found)
    assert training_commands(found) == []
    words = shlex.split(command.replace('"$WEIGHTS"', "w.pt"))
    assert words[:7] == ["atent", "attack", "w.pt", "--model", "small-cnn", "--data", "my data"]
    assert words[words.index("--set") + 1] == 'attacks=[{name = "pgd", steps = 2, loss = "cross-entropy"}]'
    assert words[-8:] == ["--examples", "4", "--seed", "3", "--batch", "7", "--threat", "linf:0.3"]
    trained(tmp_path / "script")
    (tmp_path / "script" / "environment.json").write_text('{"starts": [{"command": "sweep.py --all"}]}')
    (command,) = training_commands(gather([tmp_path / "script"])[0])
    assert shlex.split(command)[2] == str(tmp_path / "script" / "recipe.json")


def test_commands_repeat_the_half_precision(tmp_path: Path) -> None:
    (found,) = gather([attacked_run(tmp_path)])
    (proven,), half = found.certified, {"amp": "bf16"}
    write(found.folder, [True] * 4, data="mnist-small", model="small-cnn", **half)
    (found,) = gather([found.folder])
    found = replace(found, brackets=[], certified=[proven._replace(header={**proven.header, **half})])
    words = [shlex.split(command) for command in evaluation_commands(found)]
    assert [one[1] for one in words if "--amp" in one] == ["attack", "certify"]
    assert all(one[one.index("--amp") + 1] == "bf16" for one in words if "--amp" in one)


def test_a_training_by_several_processes_is_repeated_by_torchrun(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", data="mnist-small")
    start = {"command": "atent train --compile --data mnist-small demo", "processes": 4}
    (folder / "environment.json").write_text(json.dumps({"starts": [start, start]}))
    write(folder, [True] * 4, data="mnist-small", model="small-cnn")
    (found,) = gather([folder])
    typed = "torchrun --standalone --nproc-per-node 4 -m atent train --compile --data mnist-small demo"
    assert training_commands(found) == [typed]
    (command,) = evaluation_commands(found)
    assert command.startswith("atent attack runs/demo ")


def test_without_a_training_command_the_weights_are_to_be_named(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", data="mine (given in Python)")
    (folder / "environment.json").unlink()
    write(folder, [True] * 4, data="mnist", model="small-cnn")
    (command,) = evaluation_commands(gather([folder])[0])
    assert command.startswith('atent attack "$WEIGHTS" --model small-cnn --data mnist ')


def test_the_options_of_train_without_a_value_are_known() -> None:
    options = typer.main.get_command(app).commands["train"].params  # type: ignore[attr-defined]
    flags = [name for one in options if getattr(one, "is_flag", False) for name in (*one.opts, *one.secondary_opts)]
    assert sorted(flags) == sorted([*FLAGS, *({"--help"} & set(flags))])


def test_checks_of_another_variant_or_eps_are_not_those_of_the_attack(tmp_path: Path) -> None:
    header = {**HEADER, "threat": "linf:0.3"}
    for variant in ({}, {"amp": "bf16"}, {"smooth": 0.5, "draws": 16}):
        write(tmp_path / "run", [True] * 4, **variant)
    keep_checks(tmp_path / "run", {**header, "threat": "linf:0.4"}, [])
    (found,) = gather([tmp_path / "run"])
    assert [found.warnings(group) for group in found.groups] == [None] * 3
    keep_checks(tmp_path / "run", header, ["plain"])
    keep_checks(tmp_path / "run", {**header, "amp": "bf16"}, ["half"])
    (found,) = gather([tmp_path / "run"])
    assert [found.warnings(group) for group in found.groups] == [("plain",), ("half",), None]


def test_the_recipe_of_a_run_is_a_recipe(tmp_path: Path) -> None:
    path = attacked_run(tmp_path) / "recipe.json"
    assert load_recipe(str(path)).model_dump(mode="json") == json.loads(path.read_text())
    assert load_recipe(str(path), {"epochs": 5}).epochs == 5


def test_runs_without_attacks_rows_alone_and_half_written(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain")
    (plain / "best.safetensors").touch()
    page = read(plain)
    (command,) = [text for text in page.text_of("code") if text.startswith("atent attack")]
    assert command == f"atent attack {plain} --suite strong --save-images"
    assert "Accuracy under attack" not in page.text_of("h2")

    write(tmp_path / "rows", [True, False] * 10)
    page = read(tmp_path / "rows")
    assert "50.00 [29.9, 70.1]" in page.text_of("td")
    assert any("no record of the training" in text for text in page.text_of("p"))

    half = trained(tmp_path / "half", epochs=1)
    path = write(half, [True] * 20)
    path.write_bytes(path.read_bytes()[:-200])
    (half / "environment.json").write_text('{"starts": [')
    words = " ".join(read(half).text_of("p"))
    assert "Left out: " in words
    assert "is unfinished: 0 of 20 images" in words
    assert "environment.json" in words

    page = read(trained(tmp_path / "killed", epochs=0))
    assert page.text_of("code")[0] == "atent train demo"
    assert "The same command continues the training:" in page.text_of("p")


def test_commands_open_the_network_and_the_data_as_the_training_did(tmp_path: Path) -> None:
    """The next attack and the check of the rows, of a network of the user's and of data in another folder."""
    folder = trained(tmp_path / "own", model="my_nets:tiny")
    start = {"command": "atent train mine.toml --data-dir ../data --model my_nets:tiny"}
    (folder / "environment.json").write_text(json.dumps({"starts": [start]}))
    (folder / "best.safetensors").touch()
    options = "--model my_nets:tiny --data-dir ../data"
    assert f"atent attack {folder} {options} --suite strong --save-images" in read(folder).text_of("code")
    write(folder, [True] * 4, model="my_nets:tiny")
    assert f"atent verify {folder} {options}" in read(folder).text_of("code")


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    """HTML, formulas and quotes in the names of the run, its data, classes, attack and settings."""
    name = HOSTILE.replace("/", "|")
    folder = trained(tmp_path / name, data=HOSTILE, model=HOSTILE)
    path = write(folder, [k % 2 == 0 for k in range(9)], data=HOSTILE, label=HOSTILE, classes=[HOSTILE, "b", "c"])
    write(folder, [True] * 9, data=HOSTILE, label=HOSTILE, classes=[HOSTILE, "b", "c"], threat="linf:0.1")
    rows, x = RowFile(ATTACK, path).read().rows, torch.rand(9, 1, 4, 4)
    keep_points(path, rows, x, x / 2)
    join_points(path)
    text = render(page_of(gather([folder])))
    page = check_page(text)
    assert len(page.all("script")) == 1
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)") > 10
    assert all(HOSTILE in one["alt"] for one in page.all("img")[:1])
    assert any("$\\frac{1}$" in words for words in page.text_of("text"))  # in a figure: not a formula


def test_several_runs_side_by_side(tmp_path: Path) -> None:
    """The differences are those of the counts; fifty runs stay small, and no gallery is in the page."""
    for k in range(50):
        folder = trained(tmp_path / f"run-{k}", seed=k)
        write(folder, [j < 10 + k for j in range(60)], weights=f"{k:064}")
    page = read(*(tmp_path / f"run-{k}" for k in range(50)))
    assert {"Side by side", "Differences", "Settings and commands of each run"} <= set(page.text_of("h2"))
    cells = page.text_of("td")
    assert any(cell.startswith("+1.67 [") for cell in cells)  # 1 of 60 images, and 2
    assert any(cell.startswith("+3.33 [") for cell in cells)
    assert {"1.00", "0.50"} <= set(cells)  # McNemar's p of 0 against 1, and of 0 against 2
    assert not page.all("img")
    assert len(page.all("svg")) == 3
    assert page.text_of("h1") == ["50 runs"]


def test_the_figure_of_differences_is_at_the_main_threat(tmp_path: Path) -> None:
    for name, robust in (("one", True), ("two", False)):
        folder = trained(tmp_path / name)
        for threat in ("linf:0.0", "linf:0.30", "linf:0.4"):
            write(folder, [robust] * 20, threat=threat, weights=name * 10)
    page = read(tmp_path / "one", tmp_path / "two")
    assert any("linf:0.3: difference from one" in text for text in page.text_of("figcaption"))


def test_many_remarks_are_folded(tmp_path: Path) -> None:
    folders = [trained(tmp_path / f"run-{k}") for k in range(10)]
    for folder in folders[:2]:
        write(folder, [True] * 4, weights=folder.name * 10)
    page = read(*folders)
    assert "What is not compared, and other remarks: 8" in page.text_of("summary")


def test_the_names_of_a_legend_fit_into_the_figure() -> None:
    """Two long names are below each other."""
    for length, columns in ((12, 2), (34, 1)):
        lines = {letter * length: [(0.0, Rate(0.5, 0.4, 0.6)), (0.1, Rate(0.4, 0.3, 0.5))] for letter in "ab"}
        svg = against_eps("eps", "linf", lines).svg
        places = {re.search(rf'x="([\d.]+)"[^>]*>{letter * length}<', svg) for letter in "ab"}
        assert len({place[1] for place in places if place}) == columns, length


def test_large_images_are_scaled_down_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "large", [False] * 6)
    x = torch.rand(6, 3, 90, 180, generator=torch.Generator().manual_seed(0))
    keep_points(path, RowFile(ATTACK, path).read().rows, x, 1 - x)
    join_points(path)
    monkeypatch.setattr("atent.page.gallery.BYTES", 300_000)
    images = [one["src"] for one in read(tmp_path / "large").all("img")]
    with Image.open(io.BytesIO(base64.b64decode(images[0].partition(",")[2]))) as picture:
        assert picture.size == (112, 56)
    assert 3 <= len(images) < 18
    assert sum(map(len, images)) < 300_000


def test_damaged_images_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [False] * 6)
    path.with_suffix(".npz").write_bytes(b"PK\3\4 and then nothing")
    assert any("cannot read" in text and ".npz" in text for text in read(tmp_path / "run").text_of("p"))
    np.savez(path.with_suffix(".npz"), x=np.zeros((6, 1, 2, 2)))
    assert any("is not a file of --save-images" in text for text in read(tmp_path / "run").text_of("p"))


def test_figures_in_one_page_share_no_ids_and_follow_its_colours() -> None:
    made = []
    for name in ("one", "two"):
        with canvas(name) as drawn:
            axes = drawn.axes[0, 0]
            axes.plot([0, 1], [1, 0], "o-", color=SERIES[0], label="a $ b_{")
            axes.legend()
            drawn.tip(axes, [0.0], [1.0], ["<tip>"])
        made.append(drawn.svg)
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in made]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert all("var(--series-0)" in svg and "var(--ink)" in svg and "#0102" not in svg for svg in made)
    assert all("xmlns" not in svg and "http" not in svg and "&lt;tip&gt;" in svg for svg in made)
    shown = Reader(made[0])
    assert shown.faults == []
    (tip,) = [one for one in shown.all("circle") if one.get("class") == "tip"]
    width, height = (float(part) for part in shown.all("svg")[0]["viewbox"].split()[2:])
    assert 0 < float(tip["cx"]) < width / 4  # the upper left corner of the axes
    assert 0 < float(tip["cy"]) < height / 4


def test_bad_reports_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write(Path("rows"), [True] * 4)
    assert_refused(capsys, ["nowhere: there is no such folder"], "report", "nowhere")
    assert_refused(capsys, ["empty has no recipe and no rows"], "report", "empty")
    assert_refused(capsys, ["--out empty is a folder"], "report", "rows", "--out", "empty")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert_refused(capsys, ["needs Jinja2", "pip install 'atent[report]'"], "report", "rows")


def test_the_page_of_half_a_write_is_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "rows", [True] * 4)
    out = write_report([tmp_path / "rows"], tmp_path / "report.html")
    before = out.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_report([tmp_path / "rows"], out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]
