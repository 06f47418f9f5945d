"""Images that a user has in hand: tensors, a torch Dataset or a DataLoader."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from atent.data.images import Images, Split
from atent.errors import UserError
from atent.inputs import check_images

GIVEN = " (given in Python)"  # end of the name of images that were given as objects
InHand = Tensor | NDArray[Any] | Dataset[Any] | DataLoader[Any]
_PAIRS = "allowed: pairs (image, label), the image a tensor of shape (channels, height, width)"


@dataclass(frozen=True)
class Given:
    """Images in memory as a data set. They are training images: the test images are given when they are needed."""

    train: Images
    name: str

    @property
    def record(self) -> dict[str, Any]:
        return {"sha256": self.digest, "image": list(self.train.shape.image), "classes": list(self.train.classes)}

    @property
    def digest(self) -> str:
        return images_hash(self.train)

    def images(self, split: Split) -> Images:
        if split == "test":
            raise UserError(f"the images of {self.name} are for training; test images are given to atent.evaluate")
        return self.train


def given_images(x: InHand, y: Any = None, *, examples: int | None = None) -> Images:
    """The images and labels, checked: pixels are floats in [0, 1] or bytes, labels are whole numbers from 0.

    Args:
        x: Images as a tensor (n, channels, height, width), or pairs of image and label: a Dataset or a DataLoader.
        y: The labels of a tensor; with a Dataset or a DataLoader they come from there.
        examples: Only the first so many images. No others are read.
    """
    pixels, labels = _tensors(x, y) if isinstance(x, Tensor | np.ndarray) else _pairs(x, y, examples)
    pixels, labels = _checked(pixels, labels)
    names, used = _class_names(x), int(labels.max()) + 1
    return Images(pixels, labels, names if len(names) >= used else tuple(map(str, range(used)))).first(examples)


def name_of(x: InHand) -> str:
    """What the images are called in tables: `tensors`, or the name of the Dataset's class."""
    source = x.dataset if isinstance(x, DataLoader) else x
    return "tensors" if isinstance(source, Tensor | np.ndarray) else type(source).__name__


def images_hash(images: Images) -> str:
    """Twelve hexadecimal digits that identify the pixels and the labels."""
    digest = hashlib.sha256(repr((images.x.shape, images.classes)).encode())
    for tensor in (images.pixels(), images.y):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:12]


def _tensors(x: Tensor | NDArray[Any], y: Any) -> tuple[Tensor, Tensor]:
    if y is None:
        raise UserError("images without labels; y must be given: a class number for each image")
    if not isinstance(y, Tensor | np.ndarray | list | tuple):
        raise UserError(f"the labels are a {type(y).__name__}: {str(y)[:40]!r}; allowed: a tensor of class numbers")
    return _tensor(x, "images"), _tensor(y, "labels")


def _pairs(x: Dataset[Any] | DataLoader[Any], y: Any, examples: int | None) -> tuple[Tensor, Tensor]:
    if y is not None:
        raise UserError(f"y = {str(y)[:40]!r} next to a {type(x).__name__}, which has the labels; leave y out")
    if not isinstance(x, Iterable) and not hasattr(x, "__getitem__"):
        raise UserError(
            f"the images are a {type(x).__name__}; allowed: a tensor, a Dataset, a DataLoader, a data set's name"
        )
    batches = isinstance(x, DataLoader)
    images, labels, count = list[Tensor](), list[Tensor](), 0
    for pair in islice(_items(x), None if batches else examples):
        image, label = _pair(pair, type(x).__name__)
        images.append(image if batches else image[None])
        labels.append(label.reshape(-1))
        count += len(images[-1])
        if examples is not None and count >= examples:
            break
    if not images:
        raise UserError(f"the {type(x).__name__} is empty; allowed: one image or more")
    try:
        return torch.cat(images), torch.cat(labels)
    except RuntimeError:
        shapes = sorted({tuple(image.shape[1:]) for image in images})
        raise UserError(f"images of different shapes: {', '.join(map(str, shapes[:3]))}; allowed: one shape") from None


def _items(x: Any) -> Iterator[Any]:
    """The items of a Dataset by their numbers, as a Dataset without `__iter__` has them; of anything else in order."""
    if isinstance(x, Dataset) and hasattr(x, "__len__") and hasattr(x, "__getitem__"):
        return (x[k] for k in range(len(x)))
    return iter(x)


def _pair(pair: Any, source: str) -> tuple[Tensor, Tensor]:
    if not isinstance(pair, tuple | list) or len(pair) < 2:
        raise UserError(f"the {source} gives a {type(pair).__name__}; {_PAIRS}")
    image, label = pair[:2]
    if not isinstance(image, Tensor | np.ndarray):
        how = "; transform=torchvision.transforms.ToTensor() makes one" if hasattr(image, "getbands") else ""
        raise UserError(f"the {source} gives images of type {type(image).__name__}; {_PAIRS}{how}")
    return _tensor(image, "images"), _tensor(label, "labels")


def _tensor(values: Any, what: str) -> Tensor:
    """Numbers as a tensor; an array is copied only if torch does not support its strides."""
    if isinstance(values, np.ndarray) and min(values.strides, default=0) < 0:
        values = values.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"the {what} are no numbers: {str(values)[:40]!r}; allowed: numbers, in one shape") from None


def _checked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels as floats in [0, 1] or bytes, and labels as int64, on the CPU."""
    if x.dim() != 4:
        raise UserError(f"images of shape {tuple(x.shape)}; allowed: (n, channels, height, width)")
    if y.shape != (len(x),):
        raise UserError(f"labels of shape {tuple(y.shape)} for {len(x):,} images; allowed: ({len(x)},)")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise UserError(f"labels of {y.dtype}; allowed: whole numbers, the classes")
    x, y = x.detach().cpu(), y.detach().cpu().long()
    if x.dtype != torch.uint8:
        check_images(x, "linf:0")
        x = x.float()
    elif x.numel() == 0:
        raise UserError(f"images of shape {tuple(x.shape)}; allowed: one image or more")
    if int(y.min()) < 0:
        raise UserError(f"the labels go from {int(y.min())} to {int(y.max())}; allowed: 0 to the number of classes - 1")
    return x, y


def _class_names(x: Any) -> tuple[str, ...]:
    """The `classes` of a torchvision Dataset, also inside a Subset or a DataLoader."""
    while isinstance(inside := getattr(x, "dataset", None), Dataset):
        x = inside
    names = getattr(x, "classes", ())
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()
