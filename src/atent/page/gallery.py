"""Attacked images as small pictures inside the page."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atent.errors import UserError
from atent.page.gather import Found
from atent.page.parts import Example, Gallery
from atent.report.figures import to_picture
from atent.report.tables import Group
from atent.storage.points import read_points
from atent.storage.rows import robust_rate

BROKEN, WITHSTOOD = 18, 6  # images that are shown
SIDE = 112  # pixels; larger images are scaled down
BYTES = 1_200_000  # of all pictures of a page


def gallery(found: Found) -> tuple[list[Gallery], list[str]]:
    """The saved images of the strongest attack, first at the main threat; and what could not be read."""
    problems, main = list[str](), found.main
    for group in sorted(found.groups, key=lambda one: one is not main):
        strongest = sorted(
            zip(group.titles, group.files, group.attacks, strict=True), key=lambda one: robust_rate(one[2].rows)
        )
        for title, file, _ in strongest:
            try:
                points = read_points(file)
            except UserError as error:
                problems.append(str(error))
                continue
            if points is not None and points["x"].ndim == 4 and len(points["x"]):
                return [_gallery(points, group, title)], problems
    return [], problems


def _gallery(points: dict[str, NDArray[Any]], group: Group, title: str) -> Gallery:
    broken = (points["clean"] == points["y"]) & ~points["robust"]
    chosen = [*_spread(points["y"], broken, BROKEN), *_spread(points["y"], points["robust"], WITHSTOOD)]
    largest = float(np.abs(points["x_adv"][chosen] - points["x"][chosen]).max(initial=0)) or 1.0
    examples, size = list[Example](), 0
    for k in chosen:
        x, x_adv = points["x"][k], points["x_adv"][k]
        pictures = (_data_uri(x), _data_uri(x_adv), _data_uri(0.5 + (x_adv - x) / (2 * largest)))
        size += sum(map(len, pictures))
        if size > BYTES:
            break
        label, clean, adversarial = (_name(group.classes, points[key][k]) for key in ("y", "clean", "adversarial"))
        number, how = int(points["index"][k]), (f"{points['size'][k]:.3g}", bool(broken[k]))
        examples.append(Example(number, label, clean, adversarial, *how, pictures))
    words = (
        f"{int(broken.sum()):,} of {len(broken):,} images were classified correctly and are broken by {title} at "
        f"{group.threat}. The difference is grey where nothing changed; black and white are a change of "
        f"{largest:.3g}, the largest here."
    )
    return Gallery(f"{title}, {group.threat}", words, examples)


def _spread(labels: NDArray[Any], among: NDArray[Any], most: int) -> list[int]:
    """The first images of each class in turn."""
    by_class = [np.flatnonzero(among & (labels == label)).tolist() for label in np.unique(labels)]
    longest = max(map(len, by_class), default=0)
    turns = [some[turn] for turn in range(longest) for some in by_class if turn < len(some)]
    return turns[:most]


def _name(classes: Sequence[str], label: Any) -> str:
    return classes[int(label)] if 0 <= int(label) < len(classes) else str(int(label))


def _data_uri(pixels: NDArray[Any]) -> str:
    from PIL import Image

    picture = to_picture(pixels)
    if len(pixels) != 3:
        picture = picture.convert("L")
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
