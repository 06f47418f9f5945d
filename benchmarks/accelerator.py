"""What half precision and compilation buy on this device: the time and the memory of a training step.

    python benchmarks/accelerator.py [--device cuda] [--networks small-cnn resnet-20] [--modes off bf16] [--rounds 5]
                                     [--eager]

A step is PGD training with K = 10 and a batch of 128. Each mode runs eagerly and, without --eager, compiled. All
modes of a network run alternately in one process; a time is the shortest round. `speed` compares it with float32,
eager. `first` is the time of the first step, which includes compiling. Memory is the peak of the device, on a GPU only.
"""

import argparse
import time
from collections.abc import Callable

import torch

from atent.defenses import PgdAt
from atent.machine import pick_device, prepare
from atent.models import MODELS, Shape
from atent.models.accelerated import Precision, accelerated
from atent.threat import Threat
from atent.training.loss_scale import LossScale
from atent.training.step import train_step

BATCH = 128
GREY = ("small-cnn", "lenet5")


def step_of(name: str, precision: Precision, compiled: bool, device: torch.device) -> Callable[[], None]:
    """A training step of this network in this mode."""
    shape = Shape((1, 28, 28) if name in GREY else (3, 32, 32), 10)
    threat = Threat("linf", 0.3 if name in GREY else 8 / 255)
    torch.manual_seed(0)
    network = MODELS[name](shape).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    running = accelerated(network, precision, compiled=compiled)
    x = torch.rand(BATCH, *shape.image, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(shape.classes, (BATCH,), device=device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    scale = LossScale() if precision == "fp16" else None
    generator = torch.Generator(device).manual_seed(0)
    return lambda: train_step(running, optimizer, PgdAt(), x, y, threat, generator, scale=scale) and None


def seconds(step: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def peak_memory(step: Callable[[], None], device: torch.device) -> str:
    if device.type != "cuda":
        return "-"
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return f"{torch.cuda.max_memory_allocated(device) / 2**20:.0f}"


def measure(name: str, modes: list[Precision], device: torch.device, rounds: int, eager: bool) -> None:
    ways = (False,) if eager else (False, True)
    steps = {(mode, how): step_of(name, mode, how, device) for mode in modes for how in ways}
    first = {key: seconds(step, device) for key, step in steps.items()}
    times: dict[tuple[Precision, bool], list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            times[key].append(seconds(step, device))
    plain = min(times[modes[0], False])
    for (mode, compiled), found in times.items():
        how, peak = "compiled" if compiled else "eager", peak_memory(steps[mode, compiled], device)
        cells = [name, mode, how, f"{1000 * min(found):.1f}", f"{plain / min(found):.2f}"]
        print("| " + " | ".join([*cells, f"{first[mode, compiled]:.1f}", peak]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--networks", nargs="+", default=["small-cnn", "resnet-20", "wrn-34-10"], choices=sorted(MODELS)
    )
    parser.add_argument("--modes", nargs="+", default=["off", "bf16", "fp16"], choices=["off", "bf16", "fp16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    prepare(options.threads)
    device = pick_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"torch {torch.__version__}, {name}, {torch.get_num_threads()} threads, batch {BATCH}, K = 10\n")
    print("| network | precision | | ms a step | speed | first, s | memory, MiB |\n|---|---|---|---:|---:|---:|---:|")
    for network in options.networks:
        measure(network, options.modes, device, options.rounds, options.eager)


if __name__ == "__main__":
    main()
