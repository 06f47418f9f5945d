"""Image sets in memory: readers that check what they read, a held-out split, and batches."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from atent.errors import UserError, unknown
from atent.models import Shape

Split = Literal["train", "test"]
PACKAGED = Path(__file__).parent / "datasets"


@dataclass(frozen=True)
class Images:
    """A set of images: `x` uint8 (n, channels, height, width), `y` int64 (n,), and what the classes are called."""

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> Shape:
        channels, height, width = self.x.shape[1:]
        return Shape((channels, height, width), len(self.classes))

    def take(self, indices: Tensor | slice) -> "Images":
        """The images with these indices."""
        return Images(self.x[indices], self.y[indices], self.classes)

    def batch(self, indices: Tensor | slice, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Pixels as float in [0,1], channels last in memory (the faster layout), and labels."""
        x = self.x[indices].to(device).float().div_(255)
        return x.to(memory_format=torch.channels_last), self.y[indices].to(device)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: its files with their published md5 sums, and how to read them."""

    files: dict[Split, tuple[str, ...]]
    sums: dict[str, str]
    read: Callable[[list[bytes]], tuple[NDArray[np.uint8], NDArray[np.uint8]]]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load(name: str, split: Split, data_dir: Path | None = None) -> Images:
    """Read one split of a data set; `mnist-small` is part of the package, the others lie in `data_dir`."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source = SOURCES[name]
    contents = [_find(name, file, source.sums[file], data_dir) for file in source.files[split]]
    x, y = source.read(contents)
    return Images(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)), source.classes)


def default_data_dir() -> Path:
    """$ATENT_DATA, or a folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ATENT_DATA") or cache / "atent")


def _find(name: str, file: str, md5: str, data_dir: Path | None) -> bytes:
    """The uncompressed content of a file, gzipped or not on disk, checked against its published sum."""
    root = PACKAGED if name == "mnist-small" else data_dir or default_data_dir()
    candidates = [folder / (file + end) for folder in (root / name, root) for end in ("", ".gz")]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise UserError(
            f"{name}: no file {file} or {file}.gz in {root / name} or {root}; "
            f"`atent data fetch {name}` brings it, or --data-dir names its folder"
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{name}: cannot read {path}: {error}") from None
    if not has_sum(content, md5):
        raise UserError(f"{name}: {path} is damaged or another file: its content's md5 sum is not the published {md5}")
    return content


def has_sum(content: bytes, md5: str) -> bool:
    """Whether a file's uncompressed content is the published one."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == md5


def _read_idx_pair(contents: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = (_read_idx(content) for content in contents)
    return images[:, None], labels


def _read_idx(content: bytes) -> NDArray[np.uint8]:
    """LeCun's idx format: two zero bytes, type 8 (uint8), the number of dimensions, each as a big-endian int32."""
    dimensions = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(tuple(dimensions)).copy()


def _read_cifar(contents: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """CIFAR-10's binary batches: rows of a label and 3072 pixels."""
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].copy()


def hold_out(images: Images, count: int, generator: torch.Generator) -> tuple[Images, Images]:
    """Split off `count` images, as evenly over the classes as they divide: (kept for training, held out)."""
    if not 0 <= count < len(images):
        raise UserError(f"validation = {count} images to hold out; allowed: 0 to {len(images) - 1} of {len(images)}")
    order = torch.randperm(len(images), generator=generator)
    labels = images.y[order]
    # Rank of each image within its class: taking the lowest ranks first balances the classes.
    rank = torch.zeros_like(labels)
    for label in labels.unique():
        members = labels == label
        rank[members] = torch.arange(int(members.sum()))
    chosen = rank.argsort(stable=True)[:count]
    held = torch.zeros(len(images), dtype=torch.bool)
    held[order[chosen]] = True
    return images.take(~held), images.take(held)


def epoch_batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffled indices in batches of `size`; a last batch of fewer is kept unless it is a single image.

    (BatchNorm cannot be trained on one image.)
    """
    batches = list(torch.randperm(count, generator=generator).split(size))
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches


def augment_crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Random crop after zero padding and random mirror image, a whole batch at once."""
    count, _, height, width = x.shape
    padded = functional.pad(x, (padding,) * 4)
    down, right = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=x.device)
    flipped = torch.rand(count, 1, generator=generator, device=x.device) < 0.5
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = torch.where(flipped, columns.flip(1), columns) + right
    rows = torch.arange(height, device=x.device) + down
    example = torch.arange(count, device=x.device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[example, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)


Augmentation = Literal["none", "crop-flip"]


def evaluation_batches(count: int, size: int, skip: int = 0) -> Iterator[slice]:
    """Slices in order, from the first one that `skip` finished examples leave undone."""
    for first in range(skip, count, size):
        yield slice(first, min(first + size, count))


def _mnist_like(
    classes: tuple[str, ...], mean: float, std: float, images: tuple[str, str], labels: tuple[str, str]
) -> Source:
    train = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    test = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    sums = dict(zip((train[0], test[0], train[1], test[1]), (*images, *labels), strict=True))
    return Source({"train": train, "test": test}, sums, _read_idx_pair, classes, (mean,), (std,))


DIGITS = tuple("0123456789")
SOURCES: dict[str, Source] = {
    "mnist-small": _mnist_like(
        DIGITS,
        0.1307,
        0.3081,
        images=("9f484b2233862355104d937104feba72", "1f443774e7b4ecd912fe34f30bda774b"),
        labels=("914ce1bea93984b0d7f6acff85acdd83", "371e95c47744df5b9d47f13e64d2d7a9"),
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
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
}
