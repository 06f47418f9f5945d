"""The modules that three walks enter, in order of first entry, as docs/design.md lists them.

python scripts/walks.py                          now; about a minute on one core
PYTHONPATH=OLDER/src python scripts/walks.py     an older checkout: it drives commands and finds functions by name

train    `atent train own-images`, from the first image file read to the first weight update
strong   `atent attack --suite strong --examples 1`, from the image read to its row written, for each attack
certify  `atent certify --examples 1`, from the image read to its certificate written

Callers on the stack at the start count. Each command runs twice and the second run is traced, so that imports do not
count. Errors, progress, storage and `parallel`, which does nothing in one process, are left out. Where a command makes
several walks, one per row, the longest is listed, and after it the modules that all of them enter together.
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from PIL import Image

from atent.cli import main

NOT_COUNTED = {
    "errors",
    "progress",
    "parallel",
    "storage",
    "rows",
    "runs",
    "sheet",
}  # the last three: storage before it was a package
CHANGES = "epochs=3 batch=8 standardize=false validation=3 monitor_examples=3 monitor.steps=2 defense.steps=2"
TRAIN = " ".join(f"--set={change}" for change in CHANGES.split())
# A command; the function whose calls are the walk, or the two between whose first call and first return it lies.
WALKS = {
    "train": (f"train own-images --data images --model small-cnn --stream {TRAIN}", ("batches", "train_step")),
    "strong": ("attack trained --suite strong --examples 1 --no-checks", ("attack_target",)),
    "certify": ("certify trained --sigma .25 --n 200 --examples 1", ("certify_target",)),
}


class Walk:
    """A profile function that notes the modules of ours while the walk lasts."""

    def __init__(self, begin: str, end: str | None = None) -> None:
        self.begin, self.end = begin, end or begin
        self.inside = self.over = False
        self.walks: list[dict[str, None]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.over or event not in ("call", "return") or not _is_ours(frame):
            return
        name = frame.f_code.co_name
        if event == "call":
            if name == self.begin and not self.inside:
                self.inside = True
                self.walks.append({})
                self.note(*reversed(list(_callers(frame))))
            if self.inside:
                self.note(frame)
        elif name == self.end and self.inside:
            self.inside, self.over = False, self.end != self.begin

    def note(self, *frames: FrameType) -> None:
        for frame in frames:
            module = str(frame.f_globals["__name__"]).removeprefix("atent.")
            if module.partition(".")[0] not in NOT_COUNTED:
                self.walks[-1][module] = None


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("atent.")


def _callers(frame: FrameType) -> Iterator[FrameType]:
    while (caller := frame.f_back) is not None:
        frame = caller
        if _is_ours(frame):
            yield frame


def atent(command: str) -> None:
    """Run a command in this process and show what it prints if it fails."""
    sys.argv = ["atent", *command.split(), "--threads", "1"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"{command}: {printed.getvalue()}") from None


def trace(command: str, *ends: str) -> list[list[str]]:
    """The modules of each walk that the command makes."""
    walk = Walk(*ends)
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        atent(command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [list(modules) for modules in walk.walks]


def write_images(folder: str) -> None:
    """A bright bar at one of three heights, quickly learned: a misclassified image would not be attacked."""
    for label in range(3):
        Path(f"{folder}/{label}").mkdir(parents=True)
        for k in range(60):
            pixels = torch.randint(50, (28, 28), generator=torch.Generator().manual_seed(k))
            pixels[9 * label : 9 * label + 9] += 200
            Image.fromarray(pixels.byte().numpy()).save(f"{folder}/{label}/{k}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_images("images")
        atent(f"{WALKS['train'][0]} --out trained")
        for name, (command, ends) in WALKS.items():
            atent(f"{command} --out {name}-0")
            walks = trace(f"{command} --out {name}-1", *ends)
            (whole,) = trace(f"{command} --out {name}-2", "main")
            longest, together = max(walks, key=len), dict.fromkeys(module for walk in walks for module in walk)
            print(f"{name} ({len(longest)}; the whole command {len(whole)}): {', '.join(longest)}")
            if len(walks) > 1:
                print(f"  {len(walks)} walks together ({len(together)}): {', '.join(together)}")
