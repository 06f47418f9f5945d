"""Attacked images kept: all of them as arrays (npz), and the first broken ones on a sheet (PNG) to look at."""

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atent.row_file import complain
from atent.rows import Row
from atent.runs import write_aside

if TYPE_CHECKING:
    from PIL import Image

SHOWN = 10
SIDE = 112  # pixels of an image on the sheet, at least
GAP, LINE = 8, 18


def keep_points(rows_file: Path, rows: Sequence[Row], x: Tensor, x_adv: Tensor) -> None:
    """Write a batch's images and points to a file of their own."""
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
    """Whether the points of the batch that begins with this example are there already."""
    return rows_file.with_suffix(".npz").exists() or _part(rows_file, first).exists()


def forget_points(rows_file: Path, done: int) -> None:
    """Remove the points of rows that are gone: those after the first `done`, and files of all together."""
    for part in _parts(rows_file).glob("*.npz"):
        if int(part.stem) >= done:
            part.unlink()
    arrays_file = rows_file.with_suffix(".npz")
    if arrays_file.exists():
        complain(f"{arrays_file} and its .png are removed: they belong to rows that are computed again")
    for end in (".npz", ".png"):
        rows_file.with_suffix(end).unlink(missing_ok=True)


def draw_points(rows_file: Path, title: str, classes: Sequence[str]) -> tuple[Path, Path]:
    """Join the batches' files to one npz beside the rows, and draw its sheet."""
    arrays_file, sheet = rows_file.with_suffix(".npz"), rows_file.with_suffix(".png")
    if not arrays_file.exists():
        parts = [_load(path) for path in sorted(_parts(rows_file).glob("*.npz"))]
        _save(arrays_file, {key: np.concatenate([part[key] for part in parts]) for key in parts[0]})
    shutil.rmtree(_parts(rows_file), ignore_errors=True)
    content = io.BytesIO()
    draw_sheet(_load(arrays_file), title, classes).save(content, "PNG")
    write_aside(sheet, content.getvalue())
    return arrays_file, sheet


def _parts(rows_file: Path) -> Path:
    return rows_file.with_suffix(".points")


def _part(rows_file: Path, first: int) -> Path:
    return _parts(rows_file) / f"{first:08}.npz"


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_aside(path, content.getvalue())


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as found:
        return dict(found)


def draw_sheet(points: dict[str, NDArray[Any]], title: str, classes: Sequence[str]) -> "Image.Image":
    """The first broken examples (or, if none is broken, the first): clean, adversarial, difference, two a row.

    The difference is grey where nothing changed; black and white are minus and plus the largest change on the sheet.
    """
    from PIL import Image, ImageDraw, ImageFont

    broken = (points["clean"] == points["y"]) & ~points["robust"]
    chosen = np.flatnonzero(broken)[:SHOWN] if broken.any() else np.arange(min(SHOWN, len(broken)))
    difference = points["x_adv"] - points["x"]
    largest = float(np.abs(difference[chosen]).max()) or 1.0
    side = max(SIDE, points["x"].shape[-1], points["x"].shape[-2])
    block, row = 3 * (side + GAP) + 2 * GAP, side + LINE + 2 * GAP
    font = ImageFont.load_default(size=12)
    head = [
        f"{title}: {int(broken.sum())} of {len(broken)} broken",
        f"clean, adversarial, difference (grey: none; black, white: -{largest:.3g}, +{largest:.3g})",
    ]
    width = max(2 * block, int(max(font.getlength(line) for line in head)) + 4 * GAP)
    sheet = Image.new("RGB", (width, 2 * GAP + len(head) * LINE + (len(chosen) + 1) // 2 * row), "white")
    draw = ImageDraw.Draw(sheet)
    for k, line in enumerate(head):
        draw.text((2 * GAP, GAP + k * LINE), line, fill="black", font=font)
    for place, k in enumerate(chosen):
        left, top = 2 * GAP + place % 2 * block, 2 * GAP + len(head) * LINE + place // 2 * row
        said = [classes[points[key][k]] for key in ("clean", "adversarial")]
        captions = [f"image {points['index'][k]}: {said[0]}", f"now {said[1]}", f"size {points['size'][k]:.3g}"]
        pictures = (points["x"][k], points["x_adv"][k], 0.5 + difference[k] / (2 * largest))
        for column, (caption, pixels) in enumerate(zip(captions, pictures, strict=True)):
            corner = (left + column * (side + GAP), top)
            sheet.paste(_picture(pixels).resize((side, side), Image.Resampling.NEAREST), corner)
            draw.rectangle((corner[0] - 1, top - 1, corner[0] + side, top + side), outline="lightgrey")
            draw.text((corner[0], top + side + 3), _fitted(caption, side, font), fill="black", font=font)
    return sheet


def _picture(pixels: NDArray[Any]) -> "Image.Image":
    """An RGB image of (channels, height, width) in [0,1]; channels other than three are shown as their mean."""
    from PIL import Image

    bytes_ = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(bytes_.transpose(1, 2, 0) if len(bytes_) == 3 else bytes_.mean(0).astype(np.uint8)).convert(
        "RGB"
    )


def _fitted(text: str, width: int, font: Any) -> str:
    """The text, cut so that it is no wider than its picture."""
    while font.getlength(text) > width:
        text = text[:-3] + ".." if len(text) > 3 else ""
    return text
