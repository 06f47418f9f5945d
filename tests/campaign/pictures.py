"""Pictures: cut, damaged, of formats that nobody expects, with names that are not UTF-8, and pipes that are none."""

import io
import os
import shutil
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from atent.data.dataset import open_data
from atent.errors import UserError
from campaign.damage import flipped
from campaign.verdict import Draw, Kind, Outcome

FORMATS = [
    "PNG",
    "JPEG",
    "GIF",
    "BMP",
    "TIFF",
    "WEBP",
    "PPM",
    "TGA",
    "ICO",
    "PCX",
    "DDS",
    "SGI",
    "EPS",
    "JPEG2000",
    "PDF",
]
FORMATS += ["AVIF", "BLP", "IM", "ICNS", "MPO", "QOI"]
MODES = ["L", "RGB", "P", "RGBA", "LA", "1", "CMYK", "I;16", "I", "F", "YCbCr", "HSV"]
SIDE = 9


def prepare(place: Path) -> None:
    """A picture in each format and mode that Pillow writes, and good pictures of two classes."""
    place.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(0)
    plain = Image.fromarray(source.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
    for label in ("a", "b"):
        (place / "good" / label).mkdir(parents=True)
        for number in range(2):
            plain.rotate(90 * number).convert("L" if label == "a" else "RGB").save(
                place / "good" / label / f"{number}.png"
            )
    (place / "odd").mkdir()
    for mode in MODES:
        for form in FORMATS:
            content = io.BytesIO()
            try:
                with warnings.catch_warnings(action="ignore"):
                    plain.convert("L" if mode.startswith(("I", "F")) else "RGB").convert(mode).save(content, form)
            except (OSError, ValueError, KeyError, AttributeError):
                continue
            (place / "odd" / f"{form}-{mode.replace(';', '')}").write_bytes(content.getvalue())
    for colour, name in ((2, "rgb"), (4, "grey-alpha"), (6, "rgba")):
        (place / "odd" / f"PNG-16-{name}").write_bytes(deep_png(colour))
    (place / "odd" / "PPM-16").write_bytes(b"P6 9 9 65535\n" + source.bytes(9 * 9 * 6))
    (place / "odd" / "PNG-bomb").write_bytes(png(60_000, 60_000, 0, zlib.compress(bytes(1 << 20))))


def deep_png(colour: int) -> bytes:
    """A PNG with 16 bits per channel, which Pillow reads as 8."""
    channels = {2: 3, 4: 2, 6: 4}[colour]
    line = b"\0" + bytes(range(256))[: 2 * channels * SIDE].ljust(2 * channels * SIDE, b"\7")
    return png(SIDE, SIDE, colour, zlib.compress(line * SIDE), depth=16)


def png(width: int, height: int, colour: int, pixels: bytes, depth: int = 8) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    shutil.copytree(prepared / "good", folder / "data")
    odd = draw.choice(sorted((prepared / "odd").iterdir()))
    name = draw.choice([b"x.png", b"x.jpg", b"x", b"x.eps", b"\xff\xfe.png", b"a\nb.png", b"-", b" .png"])
    path = os.fsencode(folder / "data" / draw.choice(["a", "b"])) + b"/" + name
    way = _put(draw, path, odd)
    resize = draw.choice([None, None, 5])
    white = draw.choice([None, None, None, None, 65535])
    what = f"{odd.name} as {name!r}: {way}, resize {resize}, white {white}"
    return Outcome(what, tuple(_faults(folder / "data", resize, white, odd.name if way == "whole" else "")))


def _put(draw: Draw, path: bytes, odd: Path) -> str:
    what, content = draw.random(), odd.read_bytes()
    if what < 0.02:
        os.mkfifo(path)
        return "a pipe"
    if what < 0.03:
        os.symlink(b"nothing", path)  # noqa: PTH211 (its name is bytes)
        return "a link to nothing"
    way, content = {
        0: ("whole", content),
        1: ("bit", flipped(draw, content, 1)),
        2: ("bits", flipped(draw, content, 20)),
        3: ("more", content + draw.randbytes(50)),
    }.get(draw.randrange(16), ("cut", content[: draw.randrange(len(content) + 1)]))
    with open(path, "wb") as file:  # noqa: PTH123 (its name is bytes)
        file.write(content)
    return way


def _faults(folder: Path, resize: int | None, white: int | None, whole: str) -> list[str]:
    """Read all images; only a UserError of one line may come of it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = open_data(str(folder), resize=resize, white=white)
            for split in ("train", "test"):
                found.images(split).in_memory()
    except UserError as error:
        return [f"a message of two lines: {error}"] if len(str(error).splitlines()) > 1 else []
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    deep = whole.startswith(("PNG-16", "PPM-16", "PNG-I", "TIFF-I"))
    return [f"{whole} was read as 8 bits"] if deep and white is None else []


PICTURES = Kind("pictures", play, prepare, batch=1000, full=12_000, short=600)
