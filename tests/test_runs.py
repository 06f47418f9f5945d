import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atent.errors import UserError
from atent.machine import environment
from atent.models import MODELS, Shape
from atent.recipe import load_recipe
from atent.runs import (
    Run,
    alone,
    join_parts,
    load_tensors,
    load_weights,
    read_rows,
    save_tensors,
    take_part,
    weights_hash,
    write_aside,
)

SHAPE = Shape((1, 28, 28), 10)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_aside(path, b"old")
    with pytest.raises(TypeError):
        write_aside(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    try_it = f"from pathlib import Path; from atent.runs import alone\nwith alone(Path({str(path)!r})): print('held')"
    with alone(path):
        second = subprocess.run([sys.executable, "-c", try_it], capture_output=True, text=True, check=False)
        assert second.stdout == ""
        assert f"another process is writing {path}" in second.stderr
    assert subprocess.run([sys.executable, "-c", try_it], capture_output=True, text=True, check=True).stdout == "held\n"


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


def test_weights_load_from_safetensors_and_from_pt(tmp_path: Path) -> None:
    model = MODELS["small-cnn"](SHAPE)
    save_tensors(tmp_path / "w.safetensors", model.state_dict(), {})
    torch.save(model.state_dict(), tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        other = MODELS["small-cnn"](SHAPE)
        assert weights_hash(other) != weights_hash(model)
        assert load_weights(other, tmp_path / name) == weights_hash(model)


class Payload:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('executed')",)


def test_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    model = MODELS["small-cnn"](SHAPE)
    torch.save(MODELS["lenet5"](SHAPE).state_dict(), tmp_path / "other.pt")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Payload()))
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0")
    (tmp_path / "weights.bin").write_bytes(b"")
    for name in (
        "other.pt",
        "evil.pt",
        "list.pt",
        "torn.safetensors",
        "weights.bin",
        "absent.safetensors",
        "absent.pt",
    ):
        with pytest.raises(UserError, match=name) as caught:
            load_weights(model, tmp_path / name)
        assert "\n" not in str(caught.value), name


def test_a_folder_belongs_to_one_recipe(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.begin(load_recipe("demo"), environment())
    run.begin(load_recipe("demo"), environment())
    assert run.recipe() == load_recipe("demo")
    with pytest.raises(UserError, match=r"another recipe \(different: epochs\)"):
        run.begin(load_recipe("demo", {"epochs": 3}), environment())
