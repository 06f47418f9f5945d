"""Files of rows under damage: no table shows another accuracy, and the same command repairs them."""

import io
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atent.attacks import make_attack
from atent.methods import written_out
from atent.storage.row_file import RowFile
from atent.storage.row_format import Damage, parse, settings
from atent.storage.rows import ATTACK
from damaged_rows import (
    DAMAGES,
    HEADERS,
    KILLS,
    KINDS,
    accuracies,
    batches,
    finished_file,
    is_row,
    joined,
    rows_of,
    run,
    write_lines,
)
from test_cli import atent

RESULTS = Path(__file__).parents[1] / "results"
both = pytest.mark.parametrize("kind", KINDS)


@both
@pytest.mark.parametrize("name", [*DAMAGES, *HEADERS, *KILLS])
def test_damage_is_named_and_repaired_by_the_same_command(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_file(kind, tmp_path)
    truth, rows, lines = accuracies(tmp_path), rows_of(path), path.read_text().splitlines()
    assert len(truth) == 1
    assert len(batches(lines)) >= 4
    write_lines(path, (DAMAGES | HEADERS | KILLS)[name](lines))
    damaged = path.read_bytes()
    capsys.readouterr()

    assert accuracies(tmp_path) == []
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("left out: ")
    assert str(path) in said
    assert f"`atent {kind}`" in said

    assert run(kind, tmp_path) == path
    told = [line for line in capsys.readouterr().err.splitlines() if str(path) in line]
    assert len(told) == (name not in KILLS)
    aside = path.with_name(f"{path.name}.old")
    assert aside.exists() == (name not in KILLS)
    if name not in KILLS:
        assert aside.read_bytes() == damaged
        assert aside.name in told[0]
    assert rows_of(path) == rows
    assert accuracies(tmp_path) == truth
    assert capsys.readouterr().err == ""


@both
@pytest.mark.parametrize("kept", [0.5, 0.9, 0.999])
def test_a_file_cut_short_is_unfinished(
    kind: str, kept: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_file(kind, tmp_path)
    truth, rows, content = accuracies(tmp_path), rows_of(path), path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    capsys.readouterr()
    assert accuracies(tmp_path) == []
    assert " is unfinished: " in capsys.readouterr().err
    run(kind, tmp_path)
    assert str(path) not in capsys.readouterr().err
    assert rows_of(path) == rows
    assert accuracies(tmp_path) == truth


@both
def test_good_batches_are_kept(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = finished_file(kind, tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    good = "".join(joined(lines, batches(lines)[:2]))
    path.write_text(good + "".join(lines).removeprefix(good).replace("label", "lable", 1))
    header = json.loads(lines[0])
    assert RowFile(KINDS[kind], path).resume(header) == sum(map(is_row, good.splitlines())) > 0
    assert path.read_text() == good
    assert " is damaged: lines " in capsys.readouterr().err


@both
def test_what_follows_the_last_row_is_cut_off(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = finished_file(kind, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content + b'{"index')
    assert accuracies(tmp_path) == []
    run(kind, tmp_path)
    assert path.read_bytes() == content
    assert "20 of 20 images are kept" in capsys.readouterr().err


@both
def test_a_flipped_byte_is_noticed_wherever_it_is(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thousand in a copy in memory, and some of them in the file."""
    path = finished_file(kind, tmp_path)
    content, truth = path.read_bytes(), RowFile(KINDS[kind], path).read().rows
    header = json.loads(content.splitlines()[0])
    draw = random.Random(0)
    for trial in range(1000):
        place, flip = draw.randrange(len(content)), draw.randrange(1, 256)
        damaged = content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :]
        rows: list[Any] = []
        with suppress(Damage):  # of the header
            found = parse(KINDS[kind], io.BytesIO(damaged).readlines())
            assert not found.finished, (place, flip)
            rows = found.rows if settings(found.header) == settings(header) else []
            assert rows == truth[: len(rows)], (place, flip)
        if trial % 50 == 0:
            path.write_bytes(damaged)
            capsys.readouterr()
            assert accuracies(tmp_path) == []
            assert len(capsys.readouterr().err.splitlines()) == 1
            assert RowFile(KINDS[kind], path).resume(header) == len(rows)
            assert content.startswith(path.read_bytes()), (place, flip)


def test_one_damaged_file_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = finished_file("attack", tmp_path), finished_file("certify", tmp_path)
    write_lines(bad, DAMAGES["row lost"](bad.read_text().splitlines()))
    capsys.readouterr()
    assert atent("show", tmp_path) == 0
    shown = capsys.readouterr()
    assert "PGD-2" in shown.out
    assert "certified" not in shown.out
    assert shown.err.startswith(f"left out: {bad} is damaged: lines 2 to ")
    assert len(shown.err.splitlines()) == 1
    good.write_bytes(b"\0" * 100)
    assert atent("show", tmp_path) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert str(good) in shown.err
    assert str(bad) in shown.err


@both
def test_a_name_that_is_not_utf8_can_be_read_again(kind: str, tmp_path: Path) -> None:
    file = RowFile(KINDS[kind], finished_file(kind, tmp_path))
    header = {**file.read().header, "data": "caf\udce9", "examples": 3, "classes": ["\udcff", "\U0001f600"]}
    file.path.unlink()
    assert file.resume(header) == 0
    assert file.resume(header) == 0
    assert not file.path.with_name(f"{file.path.name}.old").exists()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"threat": "linf:0.03137254901960784"}, {"threat": "linf:8/255"}),
        ({"radii": [[0.0, ""], [0.8784, "linf:0.0313725"]]}, {"radii": [[0.0, ""], [0.8784, "linf:8/255"]]}),
    ],
    ids=["attack", "certify"],
)
def test_rows_of_a_threat_are_found_however_it_is_written(
    older: dict[str, Any], newer: dict[str, Any], tmp_path: Path
) -> None:
    kind = KINDS["attack" if "threat" in older else "certify"]
    common = {"label": "PGD-20", "data": "cifar10"}
    before = RowFile.of(kind, tmp_path, common | older)
    before.path.parent.mkdir()
    before.path.touch()
    assert RowFile.of(kind, tmp_path, common | newer).path == before.path
    before.path.unlink()
    after = RowFile.of(kind, tmp_path, common | newer).path
    assert after.name == before.path.name.replace("0.03137254901960784", "8-255")
    assert settings(common | newer) == settings(common | older)
    other = {"threat": "linf:0.0314"} if "threat" in older else {"radii": [[0.8785, "linf:8/255"]]}
    assert RowFile.of(kind, tmp_path, common | other).path.name[-14:] != after.name[-14:]


def test_rows_from_before_a_field_was_added_are_found_by_the_same_command() -> None:
    """Those of PGD-20 in results/, from before `decay` and `leak`; another leak has a file of its own."""
    (file,) = (RESULTS / "zoo" / "mnist-linf-wide" / "attack").glob("pgd-20-linf-*.jsonl")
    header = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert "leak" not in header["attack"]
    for given, same in (({}, True), ({"decay": 1.0, "leak": 0.0}, True), ({"leak": 0.001}, False)):
        attack = make_attack({"name": "pgd", "steps": 20, **given})
        now = {**header, "attack": written_out({"name": "pgd"}, attack)}
        assert (RowFile.of(ATTACK, file.parents[1], now).path == file) is same
