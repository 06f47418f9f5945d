"""What the campaign found in files: each was a traceback, a hang, a bomb or a wrong number once."""

import gzip
import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atent.data.dataset import load, open_data
from atent.data.published import MOST, SOURCES, find_file, has_sha256
from atent.data.sums import SHA256
from atent.errors import UserError
from atent.models.weights import read_weights
from atent.storage import disk, files
from atent.storage.checks import kept_checks
from atent.storage.files import read_json, write_atomically
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK
from atent.storage.run import Run
from atent.storage.typed import read_log
from atent.training.fit import fit
from atent.verification.verify import verify
from damaged_rows import finished_file
from short_runs import QUIET, assert_same_run
from test_stops import small


def arrays(path: Path, **changes: np.ndarray) -> str:
    x = np.random.default_rng(0).integers(0, 256, (30, 6, 6), dtype=np.uint8)
    np.savez_compressed(path, **{"x": x, "y": np.arange(30) % 3, **changes})  # type: ignore[arg-type]
    return str(path)


def test_a_changed_byte_of_an_npz_gives_no_traceback(tmp_path: Path) -> None:
    """zlib.error, a length that is not there, an unknown compression: all were tracebacks."""
    path = tmp_path / "x.npz"
    content = Path(arrays(path)).read_bytes()
    for place in range(0, len(content), 13):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with suppress(UserError):  # a change where nothing is read does no harm
            load(str(path), "train")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions_are_read(tmp_path: Path, method: int) -> None:
    with np.load(arrays(tmp_path / "x.npz")) as found, zipfile.ZipFile(tmp_path / "other.npz", "w", method) as file:
        for name, array in found.items():
            content = io.BytesIO()
            np.save(content, array)
            file.writestr(f"{name}.npy", content.getvalue())
    assert len(load(str(tmp_path / "other.npz"), "train")) == len(load(str(tmp_path / "x.npz"), "train"))


def test_a_declared_size_is_checked_before_anything_is_decompressed(tmp_path: Path) -> None:
    head = io.BytesIO()
    shape = (10**14, 6, 6)
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", head.getvalue() + bytes(1000))
        file.writestr("y.npy", b"")
    with pytest.raises(UserError, match="declares 1,128 bytes, and its header an array of 3,600,000,000,000,128"):
        load(str(tmp_path / "bomb.npz"), "train")


def test_an_array_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, before = list[str](), zipfile.ZipFile.open

    def counted(self: zipfile.ZipFile, name: str, *more: Any, **how: Any) -> object:
        opened.append(name)
        return before(self, name, *more, **how)

    path = arrays(tmp_path / "x.npz")
    monkeypatch.setattr(zipfile.ZipFile, "open", counted)
    load(path, "train")
    assert opened.count("x.npy") == 2  # its header, then all of it


def test_a_gzip_bomb_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(MOST + 1), compresslevel=1))
    with pytest.raises(UserError, match="more than 67,108,864 bytes"):
        find_file("mnist", "t10k-labels-idx1-ubyte", SOURCES["mnist"].sums["t10k-labels-idx1-ubyte"], tmp_path)


def test_every_published_file_has_a_sha256_sum() -> None:
    assert {name: set(one.sums) for name, one in SOURCES.items()} == {name: set(one) for name, one in SHA256.items()}
    assert not has_sha256("mnist", "t10k-labels-idx1-ubyte", b"another")


@pytest.mark.parametrize("changed", ["sparse", "bool", "complex", "meta"])
def test_tensors_that_no_network_has_are_refused(tmp_path: Path, changed: str) -> None:
    tensor = torch.eye(3)
    kinds = {
        "sparse": tensor.to_sparse(),
        "bool": tensor.bool(),
        "complex": tensor.to(torch.complex64),
        "meta": tensor.to("meta"),
    }
    torch.save({"w": kinds[changed]}, tmp_path / "w.pt")
    if changed == "bool":  # a buffer may be one; whether it fits, the network says
        assert read_weights(tmp_path / "w.pt")["w"].dtype == torch.bool
        return
    with pytest.raises(UserError, match="allowed: dense tensors of real numbers"):
        read_weights(tmp_path / "w.pt")


def pictures(place: Path) -> Path:
    for label in ("a", "b"):
        (place / label).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (9, 9), 80 * number).save(place / label / f"{number}.png")
    return place


def deep_png(colour: int, channels: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 16, colour, 0, 0, 0))
    pixels = zlib.compress((b"\0" + bytes(2 * channels * 9)) * 9)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_16_bits_in_several_channels_are_refused(tmp_path: Path, colour: int, channels: int) -> None:
    (pictures(tmp_path / "p") / "a" / "deep.png").write_bytes(deep_png(colour, channels))
    with pytest.raises(UserError, match="16-bit pixels in several channels"):
        open_data(str(tmp_path / "p"))


def test_a_ppm_of_16_bits_is_refused(tmp_path: Path) -> None:
    (pictures(tmp_path / "p") / "a" / "deep.ppm").write_bytes(b"P6 9 9 65535\n" + bytes(9 * 9 * 6))
    with pytest.raises(UserError, match="16-bit pixels in several channels"):
        open_data(str(tmp_path / "p"))


def test_formats_that_are_not_listed_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(pictures(tmp_path / "p") / "a" / "x.eps")
    with pytest.raises(UserError, match=r"x\.eps is not an image of PNG, JPEG"):
        open_data(str(tmp_path / "p"))


def test_names_that_are_not_utf_8_are_read(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "p")
    shutil.copy(folder / "a" / "0.png", os.fsdecode(os.fsencode(folder / "a") + b"/\xff.png"))
    found = open_data(str(folder))
    assert len(found.images("train")) + len(found.images("test")) == 7
    json.dumps(found.record)


def test_pipes_are_refused(tmp_path: Path) -> None:
    """Each of these waited for ever."""
    os.mkfifo(pictures(tmp_path / "p") / "a" / "x.png")
    for name in ("x.npz", "x.json", "x.jsonl", "x.safetensors"):
        os.mkfifo(tmp_path / name)
    for refused in (
        lambda: open_data(str(tmp_path / "p")),
        lambda: read_json(tmp_path / "x.json"),
        lambda: RowFile(ATTACK, tmp_path / "x.jsonl").read(),
        lambda: files.load_tensors(tmp_path / "x.safetensors"),
        lambda: write_atomically(tmp_path / "x.json", b""),
    ):
        with pytest.raises(UserError, match="is a pipe or a device; allowed: a regular file"):
            refused()


def test_a_pipe_among_rows_is_a_fault_to_verify(tmp_path: Path) -> None:
    (tmp_path / "attack").mkdir()
    os.mkfifo(tmp_path / "attack" / "x.jsonl")
    _, file = verify(tmp_path)
    assert "is a pipe or a device" in file.faults[0]


def test_accuracies_of_the_log_are_shares(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"epoch": 1, "robust": 1' + "0" * 400 + "}\n")
    with pytest.raises(UserError, match="line 1: robust"):
        read_log(tmp_path / "train.jsonl")


def test_zeros_at_the_end_of_rows_are_ignored(tmp_path: Path) -> None:
    path = finished_file("attack", tmp_path)
    known = RowFile(ATTACK, path).read().rows
    path.write_bytes(path.read_bytes() + bytes(4096))
    file = RowFile(ATTACK, path)
    found = file.read()
    assert found.rows == known
    assert file.resume(found.header) == len(known)
    assert not path.read_bytes().endswith(b"\0")


def _counting(calls: list[str], name: str, before: Callable[..., None]) -> Callable[..., None]:
    def call(*given: object) -> None:
        calls.append(name)
        before(*given)

    return call


def test_a_renamed_file_reaches_the_disk_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    for name in ("write", "sync", "rename", "sync_folder"):
        before = getattr(disk, name)
        monkeypatch.setattr(disk, name, _counting(calls, name, before))
    write_atomically(tmp_path / "x", b"content")
    assert calls == ["write", "sync", "rename", "sync_folder", "sync"]


def test_temporary_files_of_killed_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    import fcntl

    for name in (".x.dead.part", ".x.alive.part", ".y.dead.part"):
        (tmp_path / name).write_bytes(b"")
    with (tmp_path / ".x.alive.part").open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        write_atomically(tmp_path / "x", b"content")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.alive.part", ".y.dead.part", "x"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("environment.json", {"starts": 3}, "starts = 3"),
        ("environment.json", {"starts": [3]}, "starts.0 = 3"),
        ("data.json", {"place": {"path": 0.5}}, r"place.path = 0.5"),
        ("data.json", {"image": [1, 2]}, "image"),
        ("data.json", {"train": ["a"]}, "train"),
    ],
)
def test_json_of_another_type_is_named(tmp_path: Path, name: str, content: object, words: str) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"{name}: {words}.*damaged, or was edited"):
        Run(tmp_path).begin({"data": "x"}, {}, {"sha256": ""})


def test_checks_of_another_type_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    one = {"weights": "w", "data": "d", "threat": "linf:0.1", "warnings": [], "smooth": "x", "draws": 1}
    (tmp_path / "checks" / "x.json").write_text(json.dumps(one))
    told = list[str]()
    assert kept_checks(tmp_path, told.append) == []
    assert "smooth = 'x'" in told[0]


def test_lost_best_weights_are_written_again_or_named(tmp_path: Path) -> None:
    recipe = small(epochs=1, defense__name="standard", validation=5950, monitor_examples=10)
    whole = fit(recipe, tmp_path / "whole", how=QUIET)
    shutil.copytree(whole.folder, tmp_path / "run")
    run = Run(tmp_path / "run")
    run.best.unlink()
    assert_same_run(fit(recipe, run.folder, how=QUIET), whole)  # the last epoch was the best one
    tensors, info = files.load_tensors(run.last)
    info["history"][-1]["best"] = False
    files.save_tensors(run.last, tensors, info)
    run.best.write_bytes(run.best.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"best\.safetensors.*restore it, or remove"):
        fit(recipe, run.folder, how=QUIET)


def test_the_header_of_a_checkpoint_is_typed(tmp_path: Path) -> None:
    recipe = small(epochs=1, defense__name="standard", validation=5950, monitor_examples=10)
    run = fit(recipe, tmp_path, how=QUIET)
    tensors, info = files.load_tensors(run.last)
    wrong: list[dict[str, Any]] = [{"epoch": "1"}, {"recipe": 3}, {"tally": []}, {"recoveries": 10**400}]
    for changes in wrong:
        files.save_tensors(run.last, tensors, {**info, **changes})
        with pytest.raises(UserError, match=r"last\.safetensors: "):
            fit(recipe, tmp_path, how=QUIET)
