"""A user's own images: a folder with one folder per class, or an .npz file with arrays x and y."""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atent.errors import UserError
from atent.images import Images, hold_out
from atent.pictures import Files, read_headers
from atent.randomness import derive

Split = Literal["train", "test"]
_NOT_MEANT = frozenset({"Thumbs.db", "desktop.ini"})  # file managers leave them, as they do hidden files


@dataclass(frozen=True)
class Folder:
    """What a folder of images was found to hold: names of files by split and class, and the shape they share."""

    root: Path
    image: tuple[int, int, int]
    crop: bool
    files: dict[Split, dict[str, list[str]]]

    @property
    def record(self) -> dict[str, Any]:
        """What a run keeps, so that its split stays the same when images are added to the folder."""
        return {"image": self.image, "crop": self.crop, "train": self.files["train"], "test": self.files["test"]}

    @property
    def digest(self) -> str:
        """Of the test images' names, classes and sizes in bytes, and of how they are cut."""
        names = [name for names in self.files["test"].values() for name in names]
        sizes = [(self.root / name).stat().st_size for name in names if (self.root / name).is_file()]
        return _short_hash([self.image, self.crop, self.files["test"], sizes])

    def images(self, split: Split) -> Images:
        """The images of a split, on the disk, in an order that mixes the classes: the first hundred are a sample."""
        by_class = self.files[split]
        labelled = [(_place(name), name, label) for label, names in enumerate(by_class.values()) for name in names]
        _, names, labels = zip(*sorted(labelled), strict=True)
        return Images(Files(self.root, list(names), self.image, self.crop), torch.tensor(labels), tuple(by_class))


def _short_hash(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def recorded_folder(root: Path, record: Mapping[str, Any]) -> Folder:
    """The folder as a run found it."""
    try:
        channels, height, width = record["image"]
        files: dict[Split, dict[str, list[str]]] = {"train": record["train"], "test": record["test"]}
        return Folder(root, (channels, height, width), record["crop"], files)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"the run's data.json is not the record of a folder of images such as {root}") from None


def look_into(root: Path, resize: int | None, test_share: float) -> Folder:
    """List a folder's images and look at their headers.

    `root/train/CLASS/...` and `root/test/CLASS/...`, or `root/CLASS/...`: then a share of the files of each class,
    chosen by a hash of their names, are the test images.
    """
    train, test = root / "train", root / "test"
    if _folders(train) and not _folders(test) and "test" not in _folders(root):
        raise UserError(f"{train} holds folders of classes but there is no {test}; allowed: both, or classes in {root}")
    if _folders(train) and _folders(test):
        files: dict[Split, dict[str, list[str]]] = {"train": _by_class(root, train), "test": _by_class(root, test)}
        for one, other in ((train, test), (test, train)):
            if missing := files[one.name].keys() - files[other.name].keys():  # type: ignore[index]
                raise UserError(
                    f"class {min(missing)!r} is in {one} but not in {other}; both must have the same classes"
                )
    else:
        files = _split(_by_class(root, root), test_share, root)
    if len(files["train"]) < 2:
        found = ", ".join(files["train"]) or "no class"
        raise UserError(f"{root} holds {found}; allowed: two or more folders, one per class, with images in them")
    names = [name for by_class in files.values() for names in by_class.values() for name in names]
    return Folder(root, _common_shape(root, names, resize), resize is not None, files)


def _folders(folder: Path) -> list[str]:
    """The folders in a folder, sorted."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _by_class(root: Path, parent: Path) -> dict[str, list[str]]:
    """The files below each folder of `parent`, as names below `root`."""
    found = {}
    for name in _folders(parent):
        files = sorted(
            str(Path(path, file).relative_to(root))
            for path, _, some in os.walk(parent / name)
            for file in some
            if _is_meant(file)
        )
        if not files:
            raise UserError(f"class {name!r} is empty: no file in {parent / name}; add images or remove the folder")
        found[name] = files
    return found


def _is_meant(file: str) -> bool:
    return not file.startswith(".") and file not in _NOT_MEANT


def _split(by_class: dict[str, list[str]], share: float, root: Path) -> dict[Split, dict[str, list[str]]]:
    """Choose test images by their names alone: adding images never makes a test image of one that was trained on."""
    files: dict[Split, dict[str, list[str]]] = {"train": {}, "test": {}}
    for label, names in by_class.items():
        if len(names) < 2:
            raise UserError(
                f"class {label!r} of {root} has one image; at least 2 are needed: one to train, one to test"
            )
        places = sorted((_place(name), name) for name in names)
        # At least one on either side, however small the class.
        count = min(max(1, sum(place < share for place, _ in places)), len(names) - 1)
        files["test"][label] = sorted(name for _, name in places[:count])
        files["train"][label] = sorted(name for _, name in places[count:])
    return files


def _place(name: str) -> float:
    """A number in [0, 1) that a name always gets."""
    return int.from_bytes(hashlib.sha256(Path(name).as_posix().encode()).digest()[:4]) / 2**32


def _common_shape(root: Path, names: list[str], resize: int | None) -> tuple[int, int, int]:
    headers = read_headers([root / name for name in names])
    channels = 3 if any(header.colour for header in headers) else 1
    if resize is not None:
        return channels, resize, resize
    first = headers[0]
    for name, header in zip(names, headers, strict=True):
        if header[1:] != first[1:]:
            raise UserError(
                f"images of different sizes: {root / names[0]} has {first.height} x {first.width} pixels, "
                f"{root / name} {header.height} x {header.width}; --set resize=N in training, --resize N in an "
                "attack crops and scales all to N x N"
            )
    return channels, first.height, first.width


@dataclass(frozen=True)
class Arrays:
    """An .npz file: `x` (n, height, width[, channels]) or (n, channels, height, width), and `y`, labels from 0.

    With `x_test` and `y_test` too, or a share of each class is split off. `classes` may hold the classes' names.
    """

    path: Path
    test_share: float

    @property
    def record(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    @property
    def digest(self) -> str:
        return _short_hash([self.record, self.test_share])

    def images(self, split: Split) -> Images:
        with self._opened() as arrays:
            classes = self._classes(arrays)
            if "x_test" in arrays:
                return self._read(arrays, "" if split == "train" else "_test", classes)
            everything = self._read(arrays, "", classes)
        train, test = hold_out(everything, self.test_share, derive(0, "test split"))
        return train if split == "train" else test

    @contextmanager
    def _opened(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        with self.path.open("rb") as file:
            try:
                found = np.load(file, allow_pickle=False)
            except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
                raise UserError(f"cannot read {self.path}: {error}") from None
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise UserError(f"{self.path} is not an .npz file of arrays x and y")
            yield found

    def _array(self, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
        if name not in arrays:
            raise UserError(f"{self.path} has no array {name!r}; found: {', '.join(arrays)}; needed: x and y")
        try:
            return arrays[name]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:  # damaged, or pickled objects
            raise UserError(f"{self.path}: cannot read array {name!r}: {error}") from None

    def _classes(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
        """The classes' names, or the labels of the training images as such."""
        labels = self._labels(arrays, "")
        if "classes" in arrays:
            names = self._array(arrays, "classes")
            if names.ndim != 1:
                raise UserError(f"{self.path}: classes has shape {names.shape}; allowed: a name for each class")
            classes = tuple(map(str, names.tolist()))
        else:
            used = np.unique(labels)
            gap = np.flatnonzero(used != np.arange(len(used)))
            if len(gap) and used[gap[0]] >= 0:
                raise UserError(
                    f"{self.path}: y: class '{gap[0]}' is empty: no image has the label {gap[0]}, but one has "
                    f"{used[gap[0]]}; labels count from 0 without a gap"
                )
            classes = tuple(map(str, range(len(used))))
        if len(classes) < 2:
            raise UserError(f"{self.path}: one class only; allowed: two or more")
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
        """uint8 as it is, floats as float32 if they lie in [0,1]; channels first."""
        where = f"{self.path}: {name}"
        if x.dtype.kind == "f":
            for reason, bad in (("not finite", ~np.isfinite(x)), ("outside [0, 1]", (x < 0) | (x > 1))):
                if bad.any():
                    at = tuple(map(int, np.argwhere(bad)[0]))
                    raise UserError(f"{where}{list(at)} = {x[at]} is {reason}; allowed: bytes, or floats from 0 to 1")
            x = x.astype(np.float32)
        elif x.dtype != np.uint8:
            raise UserError(f"{where} is {x.dtype}; allowed: uint8, or floats from 0 to 1")
        if x.ndim == 3:
            return np.ascontiguousarray(x[:, None])
        first, last = (x.ndim == 4 and x.shape[k] in (1, 3) for k in (1, 3))
        if first == last:
            raise UserError(
                f"{where} has shape {x.shape}; allowed: (n, height, width), (n, height, width, 1 or 3) or "
                "(n, 1 or 3, height, width)"
            )
        return np.ascontiguousarray(x if first else x.transpose(0, 3, 1, 2))
