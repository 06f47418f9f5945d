"""A curve on a picture: enough for accuracy against radius, without a plotting library."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atent.rows import Rate
from atent.runs import write_aside

if TYPE_CHECKING:
    from PIL import Image

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44  # margins of the frame
BLUE = (31, 90, 160)


def draw_curve(curve: Sequence[tuple[float, float]], asked: Sequence[tuple[float, Rate]], title: str) -> "Image.Image":
    """Certified accuracy (%) against l2 radius: a line through `curve`, and the radii asked for with intervals."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=13)
    reach = max([radius for radius, _ in [*curve, *asked]], default=0.0) or 1.0
    tick = next((t for t in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if reach / t <= 10), reach / 5)

    def place(radius: float, share: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * radius / (1.05 * reach), TOP + up * (1 - share)

    draw.text((LEFT, 12), title, fill="black", font=font)
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
    for radius, accuracy in asked:
        x, y = place(radius, accuracy.value)
        draw.line((x, place(0, accuracy.low)[1], x, place(0, accuracy.high)[1]), fill=BLUE)
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=BLUE)
    return picture


def save_picture(picture: "Image.Image", path: Path) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    write_aside(path, content.getvalue())
