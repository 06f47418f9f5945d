"""Attacked images stored next to their rows: one file per batch, joined into one file when all batches are done."""

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atent.errors import UserError
from atent.progress import say
from atent.storage.files import write_atomically
from atent.storage.npz import open_npz
from atent.storage.rows import Row

_ARRAYS = ("x", "x_adv", "y", "index", "clean", "adversarial", "size", "robust")


def keep_points(rows_file: Path, rows: Sequence[Row], x: Tensor, x_adv: Tensor) -> None:
    """Write the clean and the adversarial images of a batch to one file."""
    arrays = {
        "x": x.cpu().contiguous().numpy(),
        "x_adv": x_adv.cpu().contiguous().numpy(),
        "y": np.array([row["label"] for row in rows]),
        **{key: np.array([row[key] for row in rows]) for key in ("index", "clean", "adversarial", "size", "robust")},
    }
    part = _part(rows_file, rows[0]["index"])
    part.parent.mkdir(exist_ok=True)
    _save(part, arrays)


def points_kept(rows_file: Path, first: int) -> bool:
    """Whether the adversarial images of the batch that begins with this example are stored already."""
    return rows_file.with_suffix(".npz").exists() or _part(rows_file, first).exists()


def forget_points(rows_file: Path, done: int) -> None:
    """Remove the images of rows that no longer exist: all after the first `done`, and the joined files."""
    for part in _parts(rows_file).glob("*.npz"):
        if int(part.stem) >= done:
            part.unlink()
    arrays_file = rows_file.with_suffix(".npz")
    if arrays_file.exists():
        say(f"{arrays_file} and its .png are removed: their rows are computed again")
    for end in (".npz", ".png"):
        rows_file.with_suffix(end).unlink(missing_ok=True)


def join_points(rows_file: Path) -> dict[str, NDArray[Any]]:
    """Join the files of the batches into one file next to the rows; returns its arrays."""
    arrays_file = rows_file.with_suffix(".npz")
    if not arrays_file.exists():
        parts = [_checked(_load(path), path) for path in sorted(_parts(rows_file).glob("*.npz"))]
        _save(arrays_file, {key: np.concatenate([part[key] for part in parts]) for key in _ARRAYS})
    shutil.rmtree(_parts(rows_file), ignore_errors=True)
    return _checked(_load(arrays_file), arrays_file)


def read_points(rows_file: Path) -> dict[str, NDArray[Any]] | None:
    """The saved images of all rows; None if they were not saved. A UserError if the file is damaged."""
    path = rows_file.with_suffix(".npz")
    if not path.exists():
        return None
    return _checked(_load(path), path)


def _checked(found: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """The arrays, if each has an entry for each image, and images and points have one shape."""
    lengths = {key: len(found[key]) if key in found and found[key].ndim else -1 for key in _ARRAYS}
    if len(set(lengths.values())) > 1 or -1 in lengths.values() or found["x"].shape != found["x_adv"].shape:
        raise UserError(
            f"{path} is not a file of --save-images: its arrays do not have one entry for each image; remove it, and "
            "the same `atent attack` command makes it again"
        )
    return found


def _parts(rows_file: Path) -> Path:
    return rows_file.with_suffix(".points")


def _part(rows_file: Path, first: int) -> Path:
    return _parts(rows_file) / f"{first:08}.npz"


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with open_npz(path) as found:
        return dict(found)
