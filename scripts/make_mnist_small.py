"""Make `mnist-small` from MNIST: the first 600 training and the first 200 test images of each digit.

Usage: python scripts/make_mnist_small.py DATA_DIR   (the folder that holds MNIST's four files)
"""

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np
import torch

from atent.data.dataset import load
from atent.data.images import Split
from atent.data.published import PACKAGED, SOURCES


def idx(values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """LeCun's idx format for an array of bytes."""
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()


def main(data_dir: Path) -> None:
    per_class: dict[Split, int] = {"train": 600, "test": 200}
    for split, count in per_class.items():
        images = load("mnist", split, data_dir)
        chosen = torch.cat([(images.y == label).nonzero()[:count, 0] for label in range(10)]).sort().values
        contents = (images.pixels()[chosen, 0].numpy(), images.y[chosen].to(torch.uint8).numpy())
        for name, values in zip(SOURCES["mnist-small"].files[split], contents, strict=True):
            content = idx(values)
            (PACKAGED / "mnist-small" / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))
            print(name, hashlib.md5(content).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
