"""Figures without a plotting library: a curve of accuracy against radius, and a sheet of attacked images."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atent.storage.files import write_atomically
from atent.storage.rows import Rate

if TYPE_CHECKING:
    from PIL import Image

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44  # margins of the frame
BLUE, PALE = (31, 90, 160), (205, 220, 240)


def draw_curve(
    curve: Sequence[tuple[float, float]],
    asked: Sequence[tuple[float, Rate]],
    title: str,
    unbroken: Sequence[tuple[float, Rate]] = (),
) -> "Image.Image":
    """Certified accuracy (%) against l2 radius: a line through `curve`, and points with intervals at radii `asked`.

    The band between it and the accuracies `unbroken` by an attack contains the robust accuracy.
    """
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=13)
    reach = max([radius for radius, _ in [*curve, *asked]], default=0.0) or 1.0
    tick = next((t for t in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if reach / t <= 10), reach / 5)

    def place(radius: float, share: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * radius / (1.05 * reach), TOP + up * (1 - share)

    draw.text((LEFT, 12), title, fill="black", font=font)
    upper = [(radius, accuracy.value) for radius, accuracy in unbroken]
    if len(upper) > 1:
        draw.polygon([place(*point) for point in [*curve, *reversed(upper)]], fill=PALE)
    for percent in range(0, 101, 20):
        x, y = place(0, percent / 100)
        draw.line((x, y, WIDTH - RIGHT, y), fill="lightgrey")
        draw.text((x - 8, y), f"{percent} %", fill="black", font=font, anchor="rm")
    for k in range(int(1.05 * reach / tick) + 1):
        x, y = place(k * tick, 0)
        draw.line((x, y, x, y + 4), fill="black")
        draw.text((x, y + 6), f"{k * tick:g}", fill="black", font=font, anchor="mt")
    draw.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18), "l2 radius", fill="black", font=font, anchor="mt")
    draw.line([place(radius, share) for radius, share in curve], fill=BLUE, width=2)
    for radius, accuracy in [*asked, *unbroken]:
        x, y = place(radius, accuracy.value)
        draw.line((x, place(0, accuracy.low)[1], x, place(0, accuracy.high)[1]), fill=BLUE)
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=BLUE)
    return picture


def save_picture(picture: "Image.Image", path: Path) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    write_atomically(path, content.getvalue())


SHOWN = 10
SIDE = 112  # the smallest side of an image on the sheet, in pixels
GAP, LINE = 8, 18


def draw_sheet(points: dict[str, NDArray[Any]], title: str, classes: Sequence[str]) -> "Image.Image":
    """A sheet of the first broken examples (or, if none is broken, the first examples), two per row.

    Each example is shown as clean image, adversarial image and difference. The difference is grey where nothing
    changed; black and white are minus and plus the largest change on the sheet.
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
        predicted = [classes[points[key][k]] for key in ("clean", "adversarial")]
        captions = [
            f"image {points['index'][k]}: {predicted[0]}",
            f"now {predicted[1]}",
            f"size {points['size'][k]:.3g}",
        ]
        pictures = (points["x"][k], points["x_adv"][k], 0.5 + difference[k] / (2 * largest))
        for column, (caption, pixels) in enumerate(zip(captions, pictures, strict=True)):
            corner = (left + column * (side + GAP), top)
            sheet.paste(to_picture(pixels).resize((side, side), Image.Resampling.NEAREST), corner)
            draw.rectangle((corner[0] - 1, top - 1, corner[0] + side, top + side), outline="lightgrey")
            draw.text((corner[0], top + side + 3), _fitted(caption, side, font), fill="black", font=font)
    return sheet


def to_picture(pixels: NDArray[Any]) -> "Image.Image":
    """An RGB image of (channels, height, width) in [0,1]; channels other than three are shown as their mean."""
    from PIL import Image

    bytes_ = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(bytes_.transpose(1, 2, 0) if len(bytes_) == 3 else bytes_.mean(0).astype(np.uint8)).convert(
        "RGB"
    )


def _fitted(text: str, width: int, font: Any) -> str:
    """The text, shortened so that it is not wider than its picture."""
    while font.getlength(text) > width:
        text = text[:-3] + ".." if len(text) > 3 else ""
    return text
