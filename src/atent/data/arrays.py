"""A user's own images: an .npz file with arrays x and y."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atent.data.decode import scaled
from atent.data.folder import short_hash
from atent.data.images import Images, Split, hold_out
from atent.errors import UserError
from atent.randomness import derive
from atent.storage import disk
from atent.storage.npz import open_npz


@dataclass(frozen=True)
class Arrays:
    """An .npz file: `x` (n, height, width[, channels]) or (n, channels, height, width), and `y`, labels from 0.

    The test images are `x_test` and `y_test` or, without them, a share of each class. `classes` may hold the names of
    the classes.
    """

    path: Path
    test_share: float
    white: int | None = None

    @property
    def record(self) -> dict[str, Any]:
        disk.check_regular(self.path)
        with self.path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    @property
    def digest(self) -> str:
        return short_hash([self.record, self.test_share, *([] if self.white is None else [self.white])])

    def images(self, split: Split) -> Images:
        with open_npz(self.path) as arrays:
            classes = self._classes(arrays)
            if "x_test" in arrays:
                return self._read(arrays, "" if split == "train" else "_test", classes)
            everything = self._read(arrays, "", classes)
        train, test = hold_out(everything, self.test_share, derive(0, "test split"))
        return train if split == "train" else test

    def _array(self, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
        if name not in arrays:
            raise UserError(f"{self.path} has no array {name!r}; found: {', '.join(arrays)}; needed: x and y")
        return arrays[name]

    def _classes(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
        """The names of the classes or, without them, the labels of the training images as text."""
        labels = self._labels(arrays, "")
        if "classes" in arrays:
            names = self._array(arrays, "classes")
            if names.ndim != 1:
                raise UserError(f"{self.path}: classes has shape {names.shape}; allowed: one name per class")
            classes = tuple(map(str, names.tolist()))
        else:
            used = np.unique(labels)
            gap = np.flatnonzero(used != np.arange(len(used)))
            if len(gap) and used[gap[0]] >= 0:
                raise UserError(
                    f"{self.path}: y: class '{gap[0]}' is empty: no image has the label {gap[0]}, but one has "
                    f"{used[gap[0]]}; allowed: labels from 0 without a gap"
                )
            classes = tuple(map(str, range(len(used))))
        if len(classes) < 2:
            raise UserError(f"{self.path}: only one class; allowed: two or more")
        return classes

    def _labels(self, arrays: Mapping[str, NDArray[Any]], end: str) -> NDArray[Any]:
        x, y = self._array(arrays, f"x{end}"), self._array(arrays, f"y{end}")
        if x.ndim == 0 or y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y) or not len(y):
            images = f"each of {len(x)} images" if x.ndim else "each image"
            raise UserError(
                f"{self.path}: y{end} is {y.dtype} of shape {y.shape}; allowed: one whole number for {images}"
            )
        return y

    def _read(self, arrays: Mapping[str, NDArray[Any]], end: str, classes: tuple[str, ...]) -> Images:
        x, y = self._array(arrays, f"x{end}"), self._labels(arrays, end)
        where = f"{self.path}: y{end}"
        outside = np.flatnonzero((y < 0) | (y >= len(classes)))
        if len(outside):
            raise UserError(f"{where}[{outside[0]}] = {y[outside[0]]}; allowed: 0 to {len(classes) - 1}")
        empty = np.flatnonzero(np.bincount(y.astype(np.int64), minlength=len(classes)) == 0)
        if len(empty) and not end:
            raise UserError(f"{where}: class {classes[empty[0]]!r} is empty: no image has the label {empty[0]}")
        images = Images(torch.from_numpy(self._pixels(x, f"x{end}")), torch.from_numpy(y.astype(np.int64)), classes)
        return images.take(torch.randperm(len(y), generator=derive(0, "order")))  # files are often sorted by class

    def _pixels(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        """The pixels with channels first: uint8 unchanged, floats in [0,1] as float32; 16 bits divided by `white`."""
        where = f"{self.path}: {name}"
        if self.white is not None and x.dtype != np.uint16:
            raise UserError(f"{where} is {x.dtype}; allowed with white = {self.white}: uint16")
        if self.white is not None:
            try:
                x = scaled(x, self.white)
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None
        elif x.dtype.kind == "f":
            for reason, bad in (("not finite", ~np.isfinite(x)), ("outside [0, 1]", (x < 0) | (x > 1))):
                if bad.any():
                    at = tuple(map(int, np.argwhere(bad)[0]))
                    raise UserError(f"{where}{list(at)} = {x[at]} is {reason}; allowed: bytes, or floats from 0 to 1")
            x = x.astype(np.float32)
        elif x.dtype != np.uint8:
            deep = "; white = 65535, or less for fewer used bits, scales 16 bits" if x.dtype == np.uint16 else ""
            raise UserError(f"{where} is {x.dtype}; allowed: uint8, or floats from 0 to 1{deep}")
        if x.ndim == 3:
            return np.ascontiguousarray(x[:, None])
        first, last = (x.ndim == 4 and x.shape[k] in (1, 3) for k in (1, 3))
        if first == last:
            raise UserError(
                f"{where} has shape {x.shape}; allowed: (n, height, width), (n, height, width, 1 or 3) or "
                "(n, 1 or 3, height, width)"
            )
        return np.ascontiguousarray(x if first else x.transpose(0, 3, 1, 2))
