"""A probe of seconds: some batches of a real training in a process of its own, their time and their peak memory.

The process runs `fit` itself, with a clock that ends it, so that data, checks and optimizer are those of a training.
`python -m atent.planning.probe` reads what to do from standard input, as JSON, and prints what it found.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from atent.attacks import Pgd
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.attack import attack_batch
from atent.machine import prepare
from atent.models.build import build_model
from atent.network import Shape, borrowed, predict
from atent.planning.sizes import Sizes, stand_in
from atent.recipe import Recipe, parse_recipe
from atent.storage.row_format import Cost
from atent.training.budget import part_of
from atent.training.fit import fit
from atent.training.options import TrainingOptions

SECONDS, LEAST, MOST = 10.0, 3, 60  # of the timed batches: at least so long, so many, at most so many
BATCHES, STEPS, LEAVING = 8, 10, 50  # of later evaluations; of so many images one leaves at a step
PIECES = 0.05  # more memory than the probe used: freed memory is in more pieces after a whole epoch
TINY = 1e-3  # of eps: no image breaks by itself
UNTIMED = 2  # the first batch allocates memory, and has no search in a warm-up of eps


@dataclass(frozen=True)
class Probe:
    """Seconds of a batch, and of a forward pass of an image in the evaluation; peak memory in bytes.

    `peak` is that of the device; on the CPU, of the whole process and a twentieth more. It includes evaluations in
    which images leave the attack at every step, as those of a trained network do: freed memory is then in pieces.
    `real`: the images were those of the data set. `plain`: the batches were trained without the search.
    """

    batch: int
    seconds: float
    pass_seconds: float
    peak: int
    real: bool
    plain: bool = False


class _EnoughError(Exception):
    """The probe has seen enough batches."""


class _Clock:
    """The time; it raises `_EnoughError` when enough batches are done."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.marks = seconds, list[float]()

    def __call__(self) -> float:
        self.marks.append(time.monotonic())
        timed = self.timed
        if len(timed) >= MOST or (len(timed) >= LEAST and sum(timed) >= self.seconds):
            raise _EnoughError
        return self.marks[-1]

    @property
    def timed(self) -> list[float]:
        """Seconds of the batches after the untimed ones; the first two marks are those of the start."""
        return [after - before for before, after in pairwise(self.marks[1 + UNTIMED :])]

    @property
    def batch_seconds(self) -> float:
        """The mean, without the ends of epochs, which have a mark of their own."""
        timed = self.timed
        return fmean(one for one in timed if one > median(timed) / 10)


def request(
    recipe: Recipe,
    sizes: Sizes,
    data_dir: Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    *,
    batch: int,
    plain: bool = False,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """What a probe is asked: to train so long, with so many images in a batch; `plain`: without the search."""
    changes: dict[str, Any] = {"batch": batch, "minutes": None, "recoveries": 0, "patience": None, "weights": None}
    # A short evaluation between the batches; images are held out as in the training, since that takes memory.
    changes |= {"reset": (), "epochs": 1000, "monitor_examples": 1, "monitor_draws": 1, "monitor": {"name": "fgsm"}}
    evaluated = batch if plain else max(min(sizes.evaluated(recipe), part_of(recipe)), 1)
    if plain:
        changes |= {"defense": {"name": "standard"}, "awp": 0.0, "gibbs": 0.0}
    table = {**recipe.model_dump(mode="json"), **changes}
    place = {"data_dir": str(data_dir) if data_dir else None, "device": device, "threads": threads, "seconds": seconds}
    return {"recipe": table, "sizes": sizes, "plain": plain, "evaluated": evaluated, **place}


def run_probe(asked: Mapping[str, Any]) -> Probe:
    """Answer a request in a process of its own, whose memory is that of a training."""
    command = [sys.executable, "-m", "atent.planning.probe"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise UserError(f"the probe failed: {reason.removeprefix('atent.errors.UserError: ')}")
    return Probe(**json.loads(done.stdout.splitlines()[-1]))


def measure(asked: Mapping[str, Any]) -> Probe:
    """The probe itself, in this process."""
    prepare(asked["threads"])
    train, test, (image, classes) = asked["sizes"]
    recipe, device = parse_recipe(asked["recipe"], "recipe", make="all"), torch.device(asked["device"])
    sizes, data_dir = Sizes(train, test, Shape(tuple(image), classes)), asked["data_dir"] and Path(asked["data_dir"])
    clock = _Clock(asked["seconds"])
    network = build_model(recipe.model, sizes.shape)
    with tempfile.TemporaryDirectory() as folder:
        real = _train(recipe, sizes, data_dir, network, Path(folder), clock, device)
        pass_seconds = _pass_seconds(network, sizes.shape, recipe, asked["evaluated"], device)
        if not asked["plain"]:
            _evaluate_later(network, sizes.shape, recipe, asked["evaluated"], device)
    return Probe(recipe.batch, clock.batch_seconds, pass_seconds, _peak(device), real, asked["plain"])


def _peak(device: torch.device) -> int:
    """What torch's allocator gave out; on the CPU, what the process used and a part for memory in pieces."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else round((1 + PIECES) * peak_memory())


def _train(
    recipe: Recipe,
    sizes: Sizes,
    data_dir: Path | None,
    network: nn.Module,
    folder: Path,
    clock: _Clock,
    device: torch.device,
) -> bool:
    """Train until the clock has enough; returns whether the images are real. If they are not here, others are used."""
    how = TrainingOptions(device, say=lambda _: None, clock=clock, checkpoint_minutes=1e6)
    try:
        fit(recipe, folder / "real", data_dir=data_dir, model=network, how=how)
    except _EnoughError:
        return True
    except UserError:
        if Path(recipe.data).exists():
            raise
        clock.marks.clear()
        with suppress(_EnoughError):
            fit(recipe, folder / "random", model=network, given=stand_in(sizes, recipe.batch), how=how)
    return False


def _pass_seconds(network: nn.Module, shape: Shape, recipe: Recipe, count: int, device: torch.device) -> float:
    """Seconds of a forward pass of an image: two steps of an attack on a batch that is classified correctly."""
    found = _attack_right(network, network, shape, recipe, count, device, steps=2)
    return found.seconds / max(found.forward + found.backward, 1)


def _evaluate_later(network: nn.Module, shape: Shape, recipe: Recipe, count: int, device: torch.device) -> None:
    """Some batches that are classified correctly, and of which images break at every step."""
    for _ in range(BATCHES):
        _attack_right(network, Breaking(network), shape, recipe, count, device, steps=STEPS)


class Breaking(nn.Module):
    """A network that misclassifies the first images of a batch whenever a gradient is asked for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        few = max(len(x) // LEAVING, 1)
        return torch.cat([-logits[:few], logits[few:]]) if x.requires_grad else logits


def _attack_right(
    network: nn.Module, seen: nn.Module, shape: Shape, recipe: Recipe, count: int, device: torch.device, steps: int
) -> Cost:
    """Attack `seen` with random images that have the labels which the network gives them."""
    x = torch.rand(count, *shape.image)
    with borrowed(network):
        y = predict(network, x.to(device)).cpu()
    images = Images(x, y, tuple(map(str, range(shape.classes))))
    return attack_batch(
        seen, images, slice(count), Pgd(steps=steps), recipe.make_threat().scaled(TINY), device=device
    ).cost


def peak_memory() -> int:
    """The most bytes of memory that this process has used; where /proc is missing, with those of its parent's copy."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else 1024 * used


if __name__ == "__main__":
    print(json.dumps(asdict(measure(json.load(sys.stdin)))))
