"""Write a folder of PNGs from Fashion-MNIST, one folder per class, as an example of a user's own images.

python scripts/make_clothes.py clothes --classes bag coat sandal --each 1000 [--data-dir DIR]
"""

import argparse
from pathlib import Path

from PIL import Image

from atent.data.dataset import load
from atent.data.published import SOURCES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--classes", nargs="+", default=["bag", "coat", "sandal"], choices=SOURCES["fashion-mnist"].classes
    )
    parser.add_argument("--each", type=int, default=1000, help="images of each class")
    parser.add_argument("--data-dir", type=Path, help="where `atent data fetch fashion-mnist` put it")
    chosen = parser.parse_args()
    images = load("fashion-mnist", "train", chosen.data_dir)
    pixels = images.pixels()
    for name in chosen.classes:
        folder = chosen.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for k in (images.y == images.classes.index(name)).nonzero()[: chosen.each, 0].tolist():
            Image.fromarray(pixels[k, 0].numpy()).save(folder / f"{k:05}.png")


if __name__ == "__main__":
    main()
