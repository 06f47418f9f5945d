"""Images made here: a small synthetic set in the place of CIFAR-10 at `smoke`, and two digits for Figure 1."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atent.data.dataset import load
from atent.storage.files import write_atomically

CLASSES, EACH, EACH_TEST, SIDE = 10, 12, 3, 32
DIGITS = (5, 8)


def make_data(path: Path, data_dir: Path | None) -> None:
    """Write `patches.npz`, `pair.npz` (from MNIST) or `pair-small.npz` (from mnist-small), if it is not there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = (
        _patches() if path.stem == "patches" else _pair("mnist-small" if "small" in path.stem else "mnist", data_dir)
    )
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def _patches() -> dict[str, NDArray[np.generic]]:
    """Ten classes of 3 x 32 x 32 pixels: a wave of its own direction, frequency and colour, with noise."""
    random = np.random.default_rng(0)
    angle, colour = np.linspace(0, np.pi, CLASSES, endpoint=False), random.uniform(0.2, 1, (CLASSES, 3))
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))

    def draw(each: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        y = np.tile(np.arange(CLASSES), each)
        phase = random.uniform(0, 2 * np.pi, len(y))[:, None, None]
        along = np.cos(angle[y])[:, None, None] * across + np.sin(angle[y])[:, None, None] * down
        wave = 0.5 + 0.35 * np.sin(along * (0.4 + 0.05 * y[:, None, None]) + phase)
        pixels = wave[:, None] * colour[y][:, :, None, None] + random.normal(0, 0.05, (len(y), 3, SIDE, SIDE))
        return (255 * pixels.clip(0, 1)).round().astype(np.uint8), y

    (x, y), (x_test, y_test) = draw(EACH), draw(EACH_TEST)
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


def _pair(source: str, data_dir: Path | None) -> dict[str, NDArray[np.generic]]:
    """The digits 5 and 8, with the labels 0 and 1."""
    arrays: dict[str, NDArray[np.generic]] = {"classes": np.array(list(map(str, DIGITS)))}
    for split, end in (("train", ""), ("test", "_test")):
        images = load(source, split, data_dir)  # type: ignore[arg-type]  # both are splits
        chosen = images.take(((images.y == DIGITS[0]) | (images.y == DIGITS[1])).nonzero()[:, 0])
        arrays |= {f"x{end}": chosen.pixels().numpy(), f"y{end}": (chosen.y == DIGITS[1]).long().numpy()}
    return arrays
