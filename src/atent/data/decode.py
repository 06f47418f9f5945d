"""Pictures in files: what a header says, and the pixels as networks take them."""

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from atent.errors import UserError
from atent.progress import progress

T = TypeVar("T")
GREY = frozenset({"1", "L", "LA", "La"})
COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
_TURNED_BY_EXIF = frozenset({"JPEG", "MPO", "TIFF", "WEBP"})  # asking a PNG for EXIF would decode all of it
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height


class Header(NamedTuple):
    """What decides a picture's shape: colour or grey, height and width as they are shown."""

    colour: bool
    height: int
    width: int


def read_header(path: Path) -> Header:
    """Look at a picture without decoding its pixels; a file that is none, or has no 8-bit pixels, is refused."""
    return _opened(path, _header)


def _header(image: Image.Image) -> Header:
    if image.mode not in GREY | COLOUR:
        raise ValueError(
            f"its pixels are of mode {image.mode}; allowed: 8-bit grey, RGB, palette, with or without alpha"
        )
    width, height = image.size
    if image.format in _TURNED_BY_EXIF and image.getexif().get(0x0112) in _SIDEWAYS:
        width, height = height, width
    return Header(image.mode in COLOUR, height, width)


def decode(path: Path, shape: tuple[int, int, int], crop: bool) -> NDArray[np.uint8]:
    """The pixels (channels, height, width) of a picture.

    Turned as its EXIF entry says; palettes become RGB; what is transparent is laid on white, as viewers show it; grey
    becomes RGB where the shape has three channels. With `crop`, the largest central part of the shape's proportions is
    scaled to it (bilinear, antialiased); without, another size is refused.
    """
    channels, height, width = shape

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        if image.format in _TURNED_BY_EXIF:
            image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("L" if channels == 1 else "RGB")
        if crop:
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        if image.size != (width, height):
            raise ValueError(f"it has {image.height} x {image.width} pixels, not {height} x {width}")
        flat = np.asarray(image)
        return flat[None] if channels == 1 else flat.transpose(2, 0, 1)

    return _opened(path, pixels)


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    try:
        with Image.open(path) as image:
            return use(image)
    except UnidentifiedImageError:
        raise UserError(f"{path} is not an image; move it out of the folder") from None
    # Pillow's readers raise all of these for damaged files.
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def read_headers(paths: list[Path]) -> list[Header]:
    """The headers of many pictures; threads hide the latency of a disk or a network."""
    headers = []
    with progress("looking at images", len(paths), "images", brief=True) as show, ThreadPoolExecutor(8) as pool:
        for header in pool.map(read_header, paths):
            headers.append(header)
            show(len(headers))
    return headers


@dataclass(frozen=True)
class Files:
    """Pictures that stay on the disk until they are read; indexing takes some of them and reads none."""

    root: Path
    names: list[str]
    image: tuple[int, int, int]
    crop: bool

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.names), *self.image)

    def __getitem__(self, indices: Tensor | slice) -> "Files":
        chosen = torch.arange(len(self.names))[indices].tolist()
        return replace(self, names=[self.names[k] for k in chosen])

    def read(self) -> NDArray[np.uint8]:
        """The pixels of all of them, (n, channels, height, width)."""
        pixels = np.empty(self.shape, np.uint8)
        for k, name in enumerate(self.names):
            pixels[k] = decode(self.root / name, self.image, self.crop)
        return pixels
