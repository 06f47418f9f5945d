"""Image files: their headers, and their pixels in the shape that networks take."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from atent.errors import UserError, reason_of
from atent.progress import progress
from atent.storage import disk

T = TypeVar("T")
# Pillow reads forty more, with less tested code, and some through other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA")
GREY = frozenset({"1", "L", "LA", "La"})
COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
DEEP = frozenset({"I", "I;16", "I;16L", "I;16B"})  # grey, 16 bits; read only if the user gives the value of white
_TURNED_BY_EXIF = frozenset({"JPEG", "MPO", "TIFF", "WEBP"})  # reading EXIF from a PNG would decode all of it
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height


class Header(NamedTuple):
    """What determines the shape of an image: colour or grey, height and width as displayed."""

    colour: bool
    height: int
    width: int


def read_header(path: Path, white: int | None = None) -> Header:
    """Read the header without decoding the pixels; UserError if it is not an image or its pixels are not 8-bit.

    With `white`, the value of white pixels, they must be 16-bit grey.
    """
    return _opened(path, partial(_header, white=white))


def _header(image: Image.Image, white: int | None) -> Header:
    if image.mode not in DEEP and _has_16_bits(image):
        raise ValueError("it has 16-bit pixels in several channels; allowed: 8 bits, or 16-bit grey with white")
    if image.mode in DEEP and white is None:
        raise ValueError("it has 16-bit pixels; white = 65535, or less for fewer used bits, scales them to [0, 1]")
    if white is not None and image.mode not in DEEP:
        raise ValueError(f"its pixels have mode {image.mode}; allowed with white = {white}: 16-bit grey")
    if image.mode not in GREY | COLOUR | DEEP:
        raise ValueError(
            f"its pixels have mode {image.mode}; allowed: 8-bit grey, RGB or palette, with or without alpha"
        )
    width, height = image.size
    if image.format in _TURNED_BY_EXIF and image.getexif().get(0x0112) in _SIDEWAYS:
        width, height = height, width
    return Header(image.mode in COLOUR, height, width)


def _has_16_bits(image: Image.Image) -> bool:
    """Whether Pillow would take 16-bit pixels as 8-bit ones."""
    for tile in getattr(image, "tile", ()):
        told = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(";16" in str(part) for part in told):  # the layout of the pixels in the file, such as RGB;16B
            return True
        if image.format == "PPM" and any(isinstance(part, int) and part > 255 for part in told[-1:]):
            return True
    return False


def decode(path: Path, shape: tuple[int, int, int], crop: bool, white: int | None = None) -> NDArray[Any]:
    """The pixels (channels, height, width) of an image file: bytes or, with the value of `white`, floats in [0, 1].

    The image is rotated by its EXIF entry. Palettes become RGB; transparent pixels get a white background, as in
    viewers; grey becomes RGB if the shape has three channels. With `crop`, the largest central part with the
    proportions of the shape is scaled to it (bilinear, antialiased); without, another size is an error.
    """
    channels, height, width = shape

    def pixels(image: Image.Image) -> NDArray[Any]:
        if image.format in _TURNED_BY_EXIF:
            image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        if white is None:
            image = image.convert("L" if channels == 1 else "RGB")
        else:
            image = Image.fromarray(scaled(np.asarray(image), white))
        if crop:
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        if image.size != (width, height):
            raise ValueError(f"it has {image.height} x {image.width} pixels, not {height} x {width}")
        flat = np.asarray(image)
        return flat[None] if channels == 1 else flat.transpose(2, 0, 1)

    return _opened(path, pixels)


def scaled(values: NDArray[Any], white: int) -> NDArray[np.float32]:
    """Whole numbers as floats in [0, 1], of which 1 is `white`."""
    if values.size and (values.min() < 0 or values.max() > white):
        raise ValueError(
            f"its pixels go from {values.min()} to {values.max()}; allowed with white = {white}: 0 to {white}"
        )
    return (values / np.float32(white)).astype(np.float32)


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    disk.check_regular(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            return use(image)
    except UnidentifiedImageError:
        raise UserError(f"{path} is not an image of {', '.join(FORMATS)}; move it out of the folder") from None
    except Exception as error:  # for damaged files Pillow raises nearly everything
        raise UserError(f"cannot read {path}: {reason_of(error)}") from None


def read_headers(paths: list[Path], white: int | None = None) -> list[Header]:
    """The headers of many images; threads hide the latency of a disk or a network."""
    headers = []
    with progress("reading image headers", len(paths), "images", brief=True) as show, ThreadPoolExecutor(8) as pool:
        for header in pool.map(partial(read_header, white=white), paths):
            headers.append(header)
            show(len(headers))
    return headers


@dataclass(frozen=True)
class Files:
    """Image files that are decoded only by `read`; indexing selects files without reading them."""

    root: Path
    names: list[str]
    image: tuple[int, int, int]
    crop: bool
    white: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.names), *self.image)

    def __getitem__(self, indices: Tensor | slice) -> "Files":
        chosen = torch.arange(len(self.names))[indices].tolist()
        return replace(self, names=[self.names[k] for k in chosen])

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.white is None else torch.float32

    def read(self) -> NDArray[Any]:
        """The pixels of all files, (n, channels, height, width)."""
        pixels = np.empty(self.shape, np.uint8 if self.white is None else np.float32)
        for k, name in enumerate(self.names):
            pixels[k] = decode(self.root / name, self.image, self.crop, self.white)
        return pixels
