import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atent.errors import UserError
from atent.machine import environment
from atent.models import Shape
from atent.recipe import load_recipe, recipe_of
from atent.storage.files import (
    alone,
    join_parts,
    load_tensors,
    read_json,
    read_rows,
    save_tensors,
    take_part,
    write_atomically,
)
from atent.storage.run import Run

SHAPE = Shape((1, 28, 28), 10)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    take = f"with alone(Path({str(path)!r})): pass"
    try_it = f"from pathlib import Path; from atent.storage.files import alone\n{take}"
    with alone(path):
        second = subprocess.run([sys.executable, "-c", try_it], capture_output=True, text=True, check=False)
        assert second.returncode != 0
        assert f"another process is writing {path}" in second.stderr
    with alone(path):  # the lock belongs to an open file, so a second one in this process tells the same
        pass


@pytest.mark.parametrize("kind", ["a link to a file", "a link to nothing", "a folder", "a pipe"])
def test_a_lock_touches_nothing_else(kind: str, tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious.txt", tmp_path / ".rows.jsonl.lock"
    if kind == "a folder":
        lock.mkdir()
    elif kind == "a pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(precious)
    if kind == "a link to a file":
        precious.write_text("kept")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=rf"^{re.escape(str(lock))} is in the place of a lock.*remove it$"):
        alone(tmp_path / "rows.jsonl").__enter__()
    assert sorted(tmp_path.iterdir()) == before
    if kind == "a link to a file":
        assert precious.read_text() == "kept"


def test_a_lock_that_is_a_second_name_of_a_file_leaves_its_content(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    (tmp_path / ".rows.jsonl.lock").hardlink_to(precious)
    with alone(tmp_path / "rows.jsonl"):
        pass
    assert precious.read_text() == "kept"


def test_a_line_cut_short_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a":')
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}]


def test_checkpoint_parts_come_back_as_they_went(tmp_path: Path) -> None:
    parts = {"": {"fc.weight": torch.ones(2, 2)}, "optimizer": {"0.momentum_buffer": torch.zeros(3)}}
    save_tensors(tmp_path / "x.safetensors", join_parts(parts), {"epoch": 3, "loss": 0.1})
    tensors, info = load_tensors(tmp_path / "x.safetensors")
    assert info == {"epoch": 3, "loss": 0.1}
    for part, table in parts.items():
        assert take_part(tensors, part).keys() == table.keys()


def test_a_folder_belongs_to_one_recipe(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    demo = load_recipe("demo")
    run.begin(demo.model_dump(mode="json"), environment(), {})
    assert recipe_of(run) == demo
    demo.check_same(recipe_of(run), run.folder)
    with pytest.raises(UserError, match=r"another recipe \(different: epochs\)"):
        load_recipe("demo", {"epochs": 3}).check_same(recipe_of(run), run.folder)


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (["/opt/bin/atent", "train", "demo", "--out", "my run"], "atent train demo --out 'my run'"),
        (["/src/atent/__main__.py", "train", "demo"], "atent train demo"),
        (["scripts/compare.py", "--all"], "compare.py --all"),
        ([], ""),
    ],
)
def test_the_environment_names_the_command(monkeypatch: pytest.MonkeyPatch, typed: list[str], recorded: str) -> None:
    monkeypatch.setattr("sys.argv", typed)
    assert environment()["command"] == recorded


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match="cannot read"):
        read_json(tmp_path / "recipe.json")
