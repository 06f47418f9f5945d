"""Published data sets; their files are checked against the published md5 sums and against sha256 sums."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from atent.data.images import Images, Split
from atent.data.sums import SHA256
from atent.errors import UserError

MOST = 1 << 26  # bytes of a file; the largest has 47 million
PACKAGED = Path(__file__).parents[1] / "datasets"


@dataclass(frozen=True)
class Source:
    """A published data set: its files, their md5 sums, how to read them, shape, class names, mean, deviation.

    `counts` are the numbers of training and test images.
    """

    files: dict[Split, tuple[str, ...]]
    sums: dict[str, str]
    read: Callable[[list[bytes]], tuple[NDArray[np.uint8], NDArray[np.uint8]]]
    image: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    counts: tuple[int, int]


@dataclass(frozen=True)
class Published:
    """A published data set by name: `mnist-small` is part of the package, the others are in `data_dir`."""

    name: str
    data_dir: Path | None = None

    @property
    def record(self) -> dict[str, Any]:
        """Empty: the md5 sums identify the files."""
        return {}

    @property
    def digest(self) -> str:
        return ""

    def images(self, split: Split) -> Images:
        source = SOURCES[self.name]
        contents = [find_file(self.name, file, source.sums[file], self.data_dir) for file in source.files[split]]
        x, y = source.read(contents)
        return Images(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)), source.classes)


def default_data_dir() -> Path:
    """$ATENT_DATA, or a folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ATENT_DATA") or cache / "atent")


def find_file(name: str, file: str, md5: str, data_dir: Path | None) -> bytes:
    """The uncompressed content of a file (gzipped or not on disk), checked against its published sum."""
    root, path = _root(name, data_dir), _path_of(name, file, data_dir)
    if path is None:
        raise UserError(
            f"{name}: no file {file} or {file}.gz in {root / name} or {root}; "
            f"`atent data fetch {name}` downloads it, or --data-dir names its folder"
        )
    try:
        with path.open("rb") as opened:
            content = unzipped(opened) if path.suffix == ".gz" else read_most(opened)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{name}: cannot read {path}: {error}") from None
    if not has_sum(content, md5):
        raise UserError(f"{name}: {path} is damaged or another file: the md5 sum of its content is not {md5}")
    if not has_sha256(name, path.name.removesuffix(".gz"), content):
        raise UserError(f"{name}: {path} is another file: the sha256 sum of its content is not the known one")
    return content


def is_fetched(name: str, data_dir: Path | None = None) -> bool:
    """Whether all test files of a published data set are there."""
    return all(_path_of(name, file, data_dir) for file in SOURCES[name].files["test"])


def _root(name: str, data_dir: Path | None) -> Path:
    return PACKAGED if name == "mnist-small" else data_dir or default_data_dir()


def _path_of(name: str, file: str, data_dir: Path | None) -> Path | None:
    """Where a file of a data set is, gzipped or not; None if it is not there."""
    root = _root(name, data_dir)
    candidates = (folder / (file + end) for folder in (root / name, root) for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def has_sum(content: bytes, md5: str) -> bool:
    """Whether the uncompressed content of a file has this md5 sum."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == md5


def has_sha256(name: str, file: str, content: bytes) -> bool:
    """Whether the content of a file has its sha256 sum; md5 alone does not keep out a file that was made to have it."""
    known = SHA256.get(name, {}).get(file)
    return known is None or hashlib.sha256(content).hexdigest() == known


def unzipped(file: IO[bytes]) -> bytes:
    """The content of a gzipped file, of which no more than `MOST` bytes are made."""
    with gzip.GzipFile(fileobj=file) as inside:
        return read_most(inside)


def read_most(file: IO[bytes] | gzip.GzipFile) -> bytes:
    """The content of an open file, if it is no longer than a file of a data set."""
    content = file.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(f"it has more than {MOST:,} bytes, which no file of a data set has")
    return content


def _read_idx_pair(contents: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = (_read_idx(content) for content in contents)
    return images[:, None], labels


def _read_idx(content: bytes) -> NDArray[np.uint8]:
    """LeCun's idx format: two zero bytes, type 8 (uint8), the number of dimensions, each size as big-endian int32."""
    dimensions = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(tuple(dimensions)).copy()


def _read_cifar(contents: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """CIFAR-10's binary batches: one row per image, its label and 3072 pixel values."""
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].copy()


def _mnist_like(
    classes: tuple[str, ...],
    mean: float,
    std: float,
    images: tuple[str, str],
    labels: tuple[str, str],
    counts: tuple[int, int] = (60_000, 10_000),
) -> Source:
    train = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    test = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    sums = dict(zip((train[0], test[0], train[1], test[1]), (*images, *labels), strict=True))
    return Source({"train": train, "test": test}, sums, _read_idx_pair, (1, 28, 28), classes, (mean,), (std,), counts)


DIGITS = tuple("0123456789")
SOURCES: dict[str, Source] = {
    "mnist-small": _mnist_like(
        DIGITS,
        0.1307,
        0.3081,
        images=("9f484b2233862355104d937104feba72", "1f443774e7b4ecd912fe34f30bda774b"),
        labels=("914ce1bea93984b0d7f6acff85acdd83", "371e95c47744df5b9d47f13e64d2d7a9"),
        counts=(6000, 2000),
    ),
    "mnist": _mnist_like(
        DIGITS,
        0.1307,
        0.3081,
        images=("6bbc9ace898e44ae57da46a324031adb", "2646ac647ad5339dbf082846283269ea"),
        labels=("a25bea736e30d166cdddb491f175f624", "27ae3e4e09519cfbb04c329615203637"),
    ),
    "fashion-mnist": _mnist_like(
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        0.2860,
        0.3530,
        images=("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8181f5470baa50b63fa0f6fddb340f0a"),
        labels=("9018921c3c673c538a1fc5bad174d6f9", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
    "cifar10": Source(
        {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)},
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        _read_cifar,
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        counts=(50_000, 10_000),
    ),
}
