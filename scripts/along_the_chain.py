"""Where the loss of ATENT comes from: size, cross-entropy and weight of each sample of its chain that is trained on.

python scripts/along_the_chain.py WEIGHTS --data-dir DATA --set noise=1e-3 --set share=0.9 --set project=last
python scripts/along_the_chain.py runs/ablation/atent-0/best.safetensors ...        a network of `ablation.py`

The network is a `small-cnn` at linf .3 in eval mode; the images are the first of MNIST's training images. `--set`
changes a field of the defense from its default.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import nn

from atent.data.dataset import load
from atent.data.images import Images
from atent.defenses import DEFENSES, Atent
from atent.machine import prepare
from atent.methods import make, parse_setting
from atent.models.build import build_model
from atent.models.weights import load_weights
from atent.randomness import derive
from atent.threat import Threat

THREAT = Threat("linf", 0.3)
BATCH = 125


class Sample(NamedTuple):
    """Sample x'_k: its mean size and cross-entropy over all images, and its part of the training loss."""

    k: int
    size: float
    loss: float
    part: float


def along(defense: Atent, model: nn.Module, images: Images, threat: Threat) -> Iterator[Sample]:
    """The samples whose share is above the tolerance of the defense, in the order of the chain."""
    trained_on = [(k, share) for k, share in enumerate(defense.shares(), start=1) if share > defense.tolerance]
    sizes, losses = [0.0] * len(trained_on), [0.0] * len(trained_on)
    for start in range(0, len(images), BATCH):
        x, y = images.batch(slice(start, start + BATCH))
        for at, term in enumerate(defense(model, x, y, threat, derive(0, "chain", start))):
            sizes[at] += float(threat.size(term.x_adv - x).sum()) / len(images)
            losses[at] += float(term.loss.detach().sum()) / len(images)
    for (k, share), size, part in zip(trained_on, sizes, losses, strict=True):
        yield Sample(k, size, part / share, part)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prepare(given.threads)
    images = load("mnist", "train", given.data_dir).take(slice(given.images))
    network = build_model("small-cnn", images.shape).eval()
    load_weights(network, given.weights)
    settings = {"name": "atent", **dict(map(parse_setting, given.set))}
    print("| sample | mean size | cross-entropy | in the training loss |\n|---|---:|---:|---:|")
    for sample in along(make(DEFENSES, settings, "defense"), network, images, THREAT):
        print(f"| x'_{sample.k} | {sample.size:.3f} | {sample.loss:.3f} | {sample.part:.3f} |")
