"""Images read from a folder during training, compared with the same images in memory: throughput and peak memory.

python benchmarks/folder.py [--images 100000] [--batches 60] [--rounds 5] [--workers 2]

Writes the images (28 x 28 PNGs, digits of mnist-small shifted at random) into a temporary folder. Throughput: training
steps of `small-cnn` with ATENT (7 steps), batches of 128, in one process, the two sources alternately, best of the
rounds. Memory: a training of one shortened epoch in its own process, with a tenth of the images and with all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

from atent.data.dataset import load, open_data
from atent.data.images import Images, epoch_batches
from atent.defenses import Atent
from atent.machine import prepare
from atent.models import MODELS
from atent.randomness import derive
from atent.threat import Threat
from atent.training.step import train_step
from step import peak_memory as own_peak

BATCH = 128


def write_images(folder: Path, count: int) -> None:
    digits = load("mnist-small", "train")
    pixels, generator = digits.pixels(), derive(0, "shifts")
    shifts = torch.randint(-3, 4, (count, 2), generator=generator).tolist()
    for k, shift in enumerate(shifts):
        source = k % len(digits)
        place = folder / digits.classes[int(digits.y[source])]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[source, 0].roll(shift, (0, 1)).numpy()).save(place / f"{k:06}.png")


def train_batches(images: Images, count: int, workers: int) -> float:
    """Images per second."""
    torch.manual_seed(0)
    model = MODELS["small-cnn"](images.shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    defense, threat = Atent(steps=7, noise=1e-3), Threat.parse("linf:0.3")
    order = epoch_batches(len(images), BATCH, derive(0, "order"))[:count]
    began = time.perf_counter()
    for x, y in images.batches(order, workers=workers):
        train_step(model, optimizer, defense, x, y, threat, derive(0, "batch"))
    return len(order) * BATCH / (time.perf_counter() - began)


def peak_memory(folder: Path, images: int, stream: bool) -> float:
    """The peak memory in MiB of a process that opens this many images and trains on some of them."""
    command = [sys.executable, __file__, "--child", str(folder), "--images", str(images)]
    done = subprocess.run([*command, *(["--stream"] if stream else [])], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def child(folder: Path, count: int, stream: bool) -> None:
    prepare(None)
    images = open_data(str(folder)).images("train").take(slice(count))
    train_batches(images if stream else images.in_memory(), 8, 2)
    print(json.dumps(own_peak()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        return child(chosen.child, chosen.images, chosen.stream)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder, chosen.images)
        began = time.perf_counter()
        streamed = open_data(str(folder)).images("train")
        print(f"scanning the folder: {time.perf_counter() - began:.1f} s for {chosen.images:,} images")
        began = time.perf_counter()
        memory = streamed.in_memory()
        print(f"reading {len(memory):,} into memory: {time.perf_counter() - began:.1f} s")
        prepare(None)
        rates = {"memory": [0.0], "folder": [0.0]}
        for _ in range(chosen.rounds):
            rates["memory"].append(train_batches(memory, chosen.batches, chosen.workers))
            rates["folder"].append(train_batches(streamed, chosen.batches, chosen.workers))
        best = {name: max(values) for name, values in rates.items()}
        print(f"training, images/s: memory {best['memory']:.0f}, folder {best['folder']:.0f}", end="")
        print(f", folder / memory {best['folder'] / best['memory']:.3f}")
        for stream in (True, False):
            peaks = [peak_memory(folder, count, stream) for count in (len(memory) // 10, len(memory))]
            kind = "folder" if stream else "memory"
            print(f"peak memory, MiB: {kind} {peaks[0]:.0f} for a tenth, {peaks[1]:.0f} for all")
    return None


if __name__ == "__main__":
    main()
