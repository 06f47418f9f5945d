"""Files of rows without checksums: read, checked as far as they can be, and marked."""

from pathlib import Path

import pytest

from atent.storage.row_file import RowFile
from damaged_rows import DAMAGES, KINDS, accuracies, finished_file, older, rows_of, run, write_lines
from test_cli import atent

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.parametrize("costs", [True, False])]


def test_older_files_are_shown_as_unverified(
    kind: str, costs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_file(kind, tmp_path)
    truth = accuracies(tmp_path)
    lines = older(path.read_text().splitlines(), costs)
    write_lines(path, DAMAGES["rows swapped"](lines))  # every row is there, and says whose it is
    before = path.read_bytes()
    run(kind, tmp_path)
    assert path.read_bytes() == before
    capsys.readouterr()
    assert accuracies(tmp_path) == truth
    for options in ([], ["--markdown"]):
        assert atent("show", tmp_path, *options) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        assert " *" in shown.out
        assert "* Rows written by an older version, without checksums: not verified.\n" in shown.out


@pytest.mark.parametrize("damage", ["rows doubled", "row copied", "row lost", "type changed"])
def test_older_files_are_checked_too(
    kind: str, costs: bool, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_file(kind, tmp_path)
    truth, lines = accuracies(tmp_path), path.read_text().splitlines()
    for name in (".old", ".old.1"):
        write_lines(path, DAMAGES[damage](older(lines, costs)))
        capsys.readouterr()
        assert accuracies(tmp_path) == []
        assert len(capsys.readouterr().err.splitlines()) == 1
        run(kind, tmp_path)
        assert f"renamed to {path.name}{name}," in capsys.readouterr().err
    assert accuracies(tmp_path) == truth


def test_sealing_gives_an_older_file_its_checksums(
    kind: str, costs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    from seal_rows import seal

    path = finished_file(kind, tmp_path)
    sealed, rows = path.read_bytes(), rows_of(path)
    write_lines(path, older(path.read_text().splitlines(), costs))
    assert seal(RowFile(KINDS[kind], path))
    assert not seal(RowFile(KINDS[kind], path))
    assert RowFile(KINDS[kind], path).read().verified
    assert rows_of(path) == rows
    assert (path.read_bytes() == sealed) is costs
