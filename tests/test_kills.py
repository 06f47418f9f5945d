"""In a file of its own, so that it is begun early: its many processes take a minute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kills", "settings"),
    [(3, []), (1, ["defense.name=mma", "optimizer.name=entropy-sgd", "optimizer.steps=2", "validation=5800"])],
    ids=["atent", "mma with entropy-sgd"],
)
def test_kills_at_random_moments_lose_nothing(kills: int, settings: list[str]) -> None:
    """SIGKILL through the command line, the state saved after each batch; the script compares bit for bit."""
    script = Path(__file__).parents[1] / "scripts" / "kill_often.py"
    command = [
        sys.executable,
        str(script),
        f"--kills={kills}",
        "--epochs=1",
        *(f"--set={setting}" for setting in settings),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["different"]) == (kills, 0)
