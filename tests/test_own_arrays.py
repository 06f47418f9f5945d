from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atent.data.dataset import load, open_data
from atent.errors import UserError


def arrays(path: Path, **changed: object) -> str:
    """An .npz file of 30 RGB images of three classes."""
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 6, 3), np.uint8)
    content = {"x": x, "y": np.arange(30) % 3} | changed
    given: dict[str, Any] = {name: value for name, value in content.items() if value is not None}
    np.savez(path / "own.npz", **given)
    return str(path / "own.npz")


def test_arrays_are_split_evenly_and_the_same_each_time(tmp_path: Path) -> None:
    file = arrays(tmp_path, classes=["a", "b", "c"])
    train, test = load(file, "train"), load(file, "test")
    assert train.classes == ("a", "b", "c")
    assert train.y.bincount().tolist() == [8, 8, 8]
    assert test.y.bincount().tolist() == [2, 2, 2]
    assert train.shape.image == (3, 8, 6)
    seen = {image.numpy().tobytes() for image in train.pixels()}
    assert not any(image.numpy().tobytes() in seen for image in test.pixels())
    assert torch.equal(load(file, "test").pixels(), test.pixels())


def test_arrays_may_bring_their_test_images_and_floats(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((6, 8, 6))
    file = arrays(tmp_path, x_test=x, y_test=np.arange(6) % 3)
    assert len(load(file, "train")) == 30
    batch, _ = load(file, "test").batch(slice(None))
    assert {image.numpy().tobytes() for image in batch} == {image.tobytes() for image in x.astype(np.float32)}
    first = np.zeros((30, 3, 8, 6), np.uint8)
    assert load(arrays(tmp_path, x=first), "train").shape.image == (3, 8, 6)


def test_test_labels_need_not_have_every_class(tmp_path: Path) -> None:
    x = np.zeros((4, 8, 6, 3), np.uint8)
    file = arrays(tmp_path, x_test=x, y_test=np.array([0, 1, 0, 1]))
    assert load(file, "test").classes == load(file, "train").classes == ("0", "1", "2")
    with pytest.raises(UserError, match=r"y_test\[3\] = 3; allowed: 0 to 2"):
        load(arrays(tmp_path, x_test=x, y_test=np.arange(4)), "test")


def spoiled(value: float) -> np.ndarray:
    x = np.full((30, 8, 6), 0.5)
    x[4, 2, 1] = value
    return x


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": None}, r"no array 'y'; found: x"),
        ({"y": np.arange(29) % 3}, r"shape \(29,\).*each of 30 images"),
        ({"y": np.zeros(30, int)}, r"only one class; allowed: two or more"),
        ({"x": np.uint8(3)}, r"y is int64 of shape \(30,\); allowed: one whole number for each image"),
        ({"classes": "abc"}, r"classes has shape \(\); allowed: one name per class"),
        ({"y": np.linspace(0, 1, 30)}, r"float64.*allowed: one whole number"),
        ({"y": np.arange(30) % 3 - 1}, r"y\[0\] = -1; allowed: 0 to"),
        ({"y": np.arange(30) % 3, "classes": ["a", "b"]}, r"y\[2\] = 2; allowed: 0 to 1"),
        ({"y": np.where(np.arange(30) == 7, 10**9, np.arange(30) % 3)}, r"no image has the label 3, but one has 10{9}"),
        ({"y": np.arange(30) % 3 * 2}, r"class '1' is empty"),
        ({"x": spoiled(np.nan)}, r"x\[4, 2, 1\] = nan is not finite"),
        ({"x": spoiled(1.5)}, r"x\[4, 2, 1\] = 1\.5 is outside \[0, 1\]"),
        ({"x": np.zeros((30, 8, 6), np.int32)}, r"int32; allowed: uint8"),
        ({"x": np.zeros((30, 8, 6, 4), np.uint8)}, r"shape \(30, 8, 6, 4\)"),
        ({"x": np.array([object()] * 30)}, r"cannot read array 'x'.*not unpickled"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path: Path, changed: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(arrays(tmp_path, **changed), "train")
    assert "\n" not in str(caught.value)


def test_a_damaged_or_changed_file_is_refused(tmp_path: Path) -> None:
    file = arrays(tmp_path)
    known = open_data(file).record
    open_data(file, known=known)
    arrays(tmp_path, y=(np.arange(30) + 1) % 3)
    with pytest.raises(UserError, match="sha256 sum has changed"):
        open_data(file, known=known)
    Path(file).write_bytes(Path(file).read_bytes()[:500])
    with pytest.raises(UserError, match=r"cannot read .*own\.npz"):
        load(file, "train")
