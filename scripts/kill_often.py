"""Kill a short training at random times, resume it, and check that nothing is lost.

python scripts/kill_often.py --kills 50 --seed 0 [--set defense.name=mma ...]

An uninterrupted training is the reference. Then trainings with the same recipe are killed with SIGKILL and started
again until they finish. Each process is killed at a time drawn uniformly from the duration of the whole training
(counted from its first line of output, not from the start of the process). After every kill each file must be readable.
A finished training must have the weights, optimizer, averages and log of the reference, bit for bit, and no temporary
file may be left. Prints a JSON line; exit code 1 if a check failed.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TextIO

import torch

from atent.cli import main as atent
from atent.storage.files import load_tensors, read_json
from atent.storage.run import Run

# 400 images of mnist-small, 8 batches per epoch, saved after each batch: a kill often hits a process that is writing.
RECIPE = ["validation=5600", "batch=50", "monitor_examples=20", "monitor.steps=2", "defense.steps=2"]
COMMAND = ["atent", "train", "demo", "--threads=1", "--checkpoint-batches=1"]
FORKS = multiprocessing.get_context("forkserver")  # its processes start in milliseconds: PyTorch is imported once


def start(folder: Path, settings: list[str]) -> tuple[ForkServerProcess, TextIO, str]:
    """Start a training; returns after its first line of output, with the rest of the output and that line."""
    command = [*COMMAND, *(f"--set={setting}" for setting in settings), f"--out={folder}"]
    reader, writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=train, args=(command, writer))
    process.start()
    writer.close()
    output = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
    return process, output, output.readline()


def train(command: list[str], output: Connection) -> None:
    """Run the command line in this process, with its standard error sent to `output`."""
    os.dup2(output.fileno(), sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.argv = command
    atent()


def check_readable(run: Run) -> None:
    """Check that all existing files can be read completely."""
    for path in (run.recipe_file, run.environment_file):
        if path.exists():
            read_json(path)
    for path in (run.last, run.best):
        if path.exists():
            load_tensors(path)
    run.history()


def differences(run: Run, reference: Run) -> list[str]:
    """What is not bit-identical to the reference."""
    found = []
    for ours, theirs in ((run.last, reference.last), (run.best, reference.best)):
        mine, other = load_tensors(ours)[0], load_tensors(theirs)[0]
        same = mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)
        found += [] if same else [ours.name]
    logs = [[row | {"seconds": 0} for row in each.history()] for each in (run, reference)]
    return found + ([] if logs[0] == logs[1] else [run.log.name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=6, help="of the training that is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="a recipe key, KEY=VALUE, as of `atent train`")
    chosen = parser.parse_args()
    settings = [*RECIPE, f"epochs={chosen.epochs}", *chosen.set]
    moments, counts = random.Random(chosen.seed), Counter[str]()
    FORKS.set_forkserver_preload(["atent.cli", "atent.training.fit"])
    with tempfile.TemporaryDirectory() as place:
        reference = Run(Path(place, "reference"))
        process, output, first = start(reference.folder, settings)  # `output` must stay open
        began = time.monotonic()
        process.join()
        duration = time.monotonic() - began
        if process.exitcode != 0:
            sys.exit(f"the reference training failed: {first}{output.read()}")
        while counts["kills"] < chosen.kills or counts["unfinished"]:
            run = Run(Path(place, f"run{counts['runs']}"))
            process, output, first = start(run.folder, settings)
            counts["resumed in the middle"] += first.startswith("resuming from")
            process.join(moments.uniform(0, duration) if counts["kills"] < chosen.kills else None)
            if process.exitcode is None:
                process.kill()
                process.join()
                counts["kills"] += 1
                counts["unfinished"] = 1
                counts["temporary files left by kills"] += len(list(run.folder.glob(".*.part")))
                check_readable(run)
                continue
            if process.exitcode != 0:
                sys.exit(f"a resumed training failed: {first}{output.read()}")
            left = [path.name for path in run.folder.glob(".*.part")]
            if wrong := differences(run, reference) + left:
                sys.exit(f"{run.folder.name} differs from the reference: {', '.join(wrong)}")
            counts["runs"] += 1
            counts["unfinished"] = 0
    del counts["unfinished"]
    print(
        json.dumps({"seed": chosen.seed, "seconds of a whole training": round(duration, 1), **counts, "different": 0})
    )


if __name__ == "__main__":
    main()
