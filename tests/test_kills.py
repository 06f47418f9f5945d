"""Kills of a training at random times. In a file of its own, so that it begins early: its processes take a while."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 3
# MMA stores a number per image, Entropy-SGD its own state, the demo an average of the weights; 8 batches.
SETTINGS = ("defense.name=mma", "defense.steps=1", "optimizer.name=entropy-sgd", "optimizer.steps=1")
FEW_IMAGES = ("validation=5800", "batch=25")


@pytest.mark.timeout(400)
def test_kills_at_random_moments_lose_nothing() -> None:
    """SIGKILL through the command line, with a checkpoint after each batch; the script compares bit for bit."""
    script = Path(__file__).parents[1] / "scripts" / "kill_often.py"
    changes = [f"--set={setting}" for setting in (*SETTINGS, *FEW_IMAGES)]
    command = [sys.executable, str(script), f"--kills={KILLS}", "--epochs=1", *changes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["different"]) == (KILLS, 0)
