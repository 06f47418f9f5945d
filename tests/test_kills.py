"""In a file of its own, so that it is begun early: its many processes take a minute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
def test_three_kills_at_random_moments_lose_nothing() -> None:
    """SIGKILL through the command line, the state saved after each batch; the script compares bit for bit."""
    script = Path(__file__).parents[1] / "scripts" / "kill_often.py"
    command = [sys.executable, str(script), "--kills=3", "--epochs=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["different"]) == (3, 0)
