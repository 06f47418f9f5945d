"""A user's own images: a folder with one folder per class."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atent.data.decode import Files, read_headers
from atent.data.images import Images, Split
from atent.errors import UserError

_SYSTEM_FILES = frozenset({"Thumbs.db", "desktop.ini"})  # files that file managers create


@dataclass(frozen=True)
class Folder:
    """The content of a folder of images: file names by split and class, and the common shape of the images."""

    root: Path
    image: tuple[int, int, int]
    crop: bool
    files: dict[Split, dict[str, list[str]]]
    white: int | None = None

    @property
    def record(self) -> dict[str, Any]:
        """What a run stores, so that its split stays the same when images are added to the folder."""
        deep = {} if self.white is None else {"white": self.white}
        split = {"train": self.files["train"], "test": self.files["test"]}
        return {"image": self.image, "crop": self.crop, **deep, **split}

    @property
    def digest(self) -> str:
        """A hash of the test images' names, classes and sizes in bytes, and of how they are cropped."""
        names = [name for names in self.files["test"].values() for name in names]
        sizes = [(self.root / name).stat().st_size for name in names if (self.root / name).is_file()]
        deep = [] if self.white is None else [self.white]
        return short_hash([self.image, self.crop, self.files["test"], sizes, *deep])

    def images(self, split: Split) -> Images:
        """The images of a split, not read yet, in an order that mixes the classes: the first n are a random sample."""
        by_class = self.files[split]
        labelled = [
            (_hash_fraction(name), name, label) for label, names in enumerate(by_class.values()) for name in names
        ]
        _, names, labels = zip(*sorted(labelled), strict=True)
        return Images(
            Files(self.root, list(names), self.image, self.crop, self.white), torch.tensor(labels), tuple(by_class)
        )


def short_hash(what: object) -> str:
    """Twelve hexadecimal digits of a hash, equal for equal things."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def recorded_folder(root: Path, record: Mapping[str, Any]) -> Folder:
    """The folder as a run has recorded it."""
    try:
        channels, height, width = record["image"]
        files: dict[Split, dict[str, list[str]]] = {"train": record["train"], "test": record["test"]}
        return Folder(root, (channels, height, width), record["crop"], files, record.get("white"))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"the run's data.json is not the record of a folder of images such as {root}") from None


def scan_folder(root: Path, resize: int | None, test_share: float, white: int | None = None) -> Folder:
    """List the images of a folder and read their headers.

    The files are `root/train/CLASS/...` and `root/test/CLASS/...`, or `root/CLASS/...`. In the second case a share of
    each class, chosen by a hash of the file names, is used as test images.
    """
    train, test = root / "train", root / "test"
    if _folders(train) and not _folders(test) and "test" not in _folders(root):
        raise UserError(f"{train} has folders of classes but there is no {test}; allowed: both, or classes in {root}")
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
        raise UserError(f"{root} has {found}; allowed: two or more folders, one per class, with images in them")
    names = [name for by_class in files.values() for names in by_class.values() for name in names]
    return Folder(root, _common_shape(root, names, resize, white), resize is not None, files, white)


def _folders(folder: Path) -> list[str]:
    """The folders in a folder, sorted."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _by_class(root: Path, parent: Path) -> dict[str, list[str]]:
    """The files below each folder of `parent`, as paths relative to `root`."""
    found = {}
    for name in _folders(parent):
        files = sorted(
            str(Path(path, file).relative_to(root))
            for path, _, some in os.walk(parent / name)
            for file in some
            if _is_wanted(file)
        )
        if not files:
            raise UserError(f"class {name!r} is empty: no file in {parent / name}; add images or remove the folder")
        found[name] = files
    return found


def _is_wanted(file: str) -> bool:
    return not file.startswith(".") and file not in _SYSTEM_FILES


def _split(by_class: dict[str, list[str]], share: float, root: Path) -> dict[Split, dict[str, list[str]]]:
    """Choose test images by their names only, so that adding images never turns a training image into a test image."""
    files: dict[Split, dict[str, list[str]]] = {"train": {}, "test": {}}
    for label, names in by_class.items():
        if len(names) < 2:
            raise UserError(
                f"class {label!r} of {root} has one image; at least 2 are needed: one to train, one to test"
            )
        places = sorted((_hash_fraction(name), name) for name in names)
        # At least one image in each split, also for small classes.
        count = min(max(1, sum(place < share for place, _ in places)), len(names) - 1)
        files["test"][label] = sorted(name for _, name in places[:count])
        files["train"][label] = sorted(name for _, name in places[count:])
    return files


def _hash_fraction(name: str) -> float:
    """A number in [0, 1) that depends only on the name."""
    return int.from_bytes(hashlib.sha256(os.fsencode(Path(name).as_posix())).digest()[:4]) / 2**32


def _common_shape(root: Path, names: list[str], resize: int | None, white: int | None) -> tuple[int, int, int]:
    headers = read_headers([root / name for name in names], white)
    channels = 3 if any(header.colour for header in headers) else 1
    if resize is not None:
        return channels, resize, resize
    first = headers[0]
    for name, header in zip(names, headers, strict=True):
        if header[1:] != first[1:]:
            raise UserError(
                f"images of different sizes: {root / names[0]} has {first.height} x {first.width} pixels, "
                f"{root / name} {header.height} x {header.width}; to crop and scale all to N x N: --set resize=N in "
                "training, --resize N in an attack"
            )
    return channels, first.height, first.width
