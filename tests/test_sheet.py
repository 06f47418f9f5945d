"""Images kept: complete after any kill, and drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atent.attacks import Pgd
from atent.errors import Interrupted
from atent.evaluation.attack import attack_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.models import Shape
from atent.network import predict
from atent.report.figures import draw_sheet
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK
from atent.threat import Threat
from toys import small_network, stand_in

IMAGES = stand_in(Shape((1, 6, 6), 3), 20)
THREAT = Threat("linf", 0.3)


def run(folder: Path, save_images: bool = True) -> Path:
    target = Target(small_network(), "abc", "toy", IMAGES, "toy", None, Path("never"))
    planned = Planned.of(Pgd(steps=3), {"name": "pgd"}, THREAT)
    return attack_target(target, planned, folder, batch=8, save_images=save_images)


def test_the_arrays_are_what_the_rows_say(tmp_path: Path) -> None:
    path = run(tmp_path)
    rows = RowFile(ATTACK, path).read().rows
    with np.load(path.with_suffix(".npz")) as found:
        assert found["index"].tolist() == list(range(20))
        assert np.array_equal(found["x"], IMAGES.batch(slice(None))[0].numpy())
        assert np.abs(found["x_adv"] - found["x"]).max() <= 0.3 + 1e-6
        model = small_network().eval()
        assert predict(model, torch.from_numpy(found["x_adv"])).tolist() == [row["adversarial"] for row in rows]
        for key, name in (("y", "label"), ("clean", "clean"), ("size", "size"), ("robust", "robust")):
            assert found[key].tolist() == [row[name] for row in rows]  # type: ignore[literal-required]
    with Image.open(path.with_suffix(".png")) as sheet:
        assert sheet.width > 3 * 112
    assert not path.with_suffix(".points").exists()


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_a_kill_loses_no_image(killed_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between a batch's points and its rows, or after rows that were made without images."""
    whole = run(tmp_path / "whole")
    batches = 0

    def append(*arguments: Any) -> None:
        nonlocal batches
        if batches == killed_after:
            raise KeyboardInterrupt
        batches += 1
        real(*arguments)

    real = RowFile.append
    monkeypatch.setattr(RowFile, "append", append)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut")
    monkeypatch.undo()
    cut = run(tmp_path / "cut")
    later = run(tmp_path / "later", save_images=False)
    assert not later.with_suffix(".npz").exists()
    rows = later.read_bytes()
    assert run(tmp_path / "later") == later
    assert later.read_bytes() == rows  # images come later, rows stay
    for path in (cut, later):
        with np.load(path.with_suffix(".npz")) as found, np.load(whole.with_suffix(".npz")) as expected:
            assert found.files == expected.files
            assert all(np.array_equal(found[key], expected[key]) for key in found.files)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("save_images", [True, False])
def test_points_of_rows_that_are_cut_off_go_with_them(
    finished: bool, save_images: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three batches is damaged, and its points with it."""
    whole, path = run(tmp_path / "whole"), run(tmp_path / "damaged")
    lines = path.read_text().splitlines(keepends=True)
    with np.load(path.with_suffix(".npz")) as arrays:
        points = dict(arrays)
    points["x_adv"][8:] = 0
    if finished:
        np.savez(path.with_suffix(".npz"), **points)
    else:
        path.with_suffix(".points").mkdir()
        for first in (0, 8):
            part = {key: array[first : first + 8] for key, array in points.items()}
            np.savez(path.with_suffix(".points") / f"{first:08}.npz", **part)
        for end in (".npz", ".png"):
            path.with_suffix(end).unlink()
        lines = lines[:20]
    path.write_text("".join([*lines[:12], lines[11], *lines[13:]]))
    capsys.readouterr()
    run(tmp_path / "damaged", save_images)
    assert (f"{path.with_suffix('.npz')} and its .png are removed" in capsys.readouterr().err) is finished
    assert path.with_suffix(".npz").exists() is save_images
    run(tmp_path / "damaged")
    with np.load(path.with_suffix(".npz")) as found, np.load(whole.with_suffix(".npz")) as expected:
        assert all(np.array_equal(found[key], expected[key]) for key in expected.files)
    assert RowFile(ATTACK, path).read().rows == RowFile(ATTACK, whole).read().rows


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("broken", [0, 3, 12])
def test_sheets_of_any_number_and_channels(channels: int, broken: int) -> None:
    x = np.random.default_rng(0).random((12, channels, 32, 20), np.float32)
    label = np.zeros(12, int)
    points = {
        "x": x,
        "x_adv": 1 - x,
        "y": label,
        "index": np.arange(12),
        "clean": label,
        "adversarial": label + 1,
        "size": np.full(12, 0.5),
        "robust": np.arange(12) >= broken,
    }
    sheet = draw_sheet(points, "a title", ["an uncommonly long name of a class of things", "b"])
    shown = min(broken or 10, 10)
    assert sheet.height > (shown + 1) // 2 * 112
    assert sheet.getpixel((0, 0)) == (255, 255, 255)
