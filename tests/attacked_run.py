"""A short training, attacked with saved images in both norms and certified: made once a process, then copied."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from test_cli import SETTINGS, atent

TRAIN = ["train", "demo", "--out", "runs/tiny", "--threads", 1, *SETTINGS]
EXAMPLES, FEWER = 30, 8


@cache
def _made() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    place = tempfile.TemporaryDirectory(prefix="atent-tests-")
    before = Path.cwd()
    os.chdir(place.name)
    try:
        assert atent(*TRAIN) == 0
        common = ["attack", "runs/tiny", "--save-images", "--threads", 1]
        both = ["--threat", "linf:0.1", "--threat", "l2:1"]
        assert atent(*common, "--examples", EXAMPLES, "--set", "steps=2", *both) == 0
        nearest = ["--attack", "deepfool", "--set", "steps=1", "--threat", "linf:0.1", "--seed", 1]
        assert atent(*common, "--examples", FEWER, *nearest) == 0
        certify = ["certify", "runs/tiny", "--sigma", 0.25, "--n", 100, "--radii", "0,.1", "--examples", 2]
        assert atent(*certify, "--attack", "smooth-pgd", "--set", "steps=1", "--draws", 2, "--threads", 1) == 0
    finally:
        os.chdir(before)
    return Path(place.name) / "runs" / "tiny", place


def attacked_run(folder: Path) -> Path:
    """A copy of the run in `folder`/runs/tiny."""
    return Path(shutil.copytree(_made()[0], folder / "runs" / "tiny"))
