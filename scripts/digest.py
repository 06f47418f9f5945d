"""A digest of the results of a short training, attack and certification, to show that a change keeps all numbers.

python scripts/digest.py            prints one line each for weights, rows and tables; about a minute on one core

It uses only the command line, so it still works after modules have moved. Times are not included.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

TRAIN = ("validation=4720", "epochs=1", "monitor_examples=50")  # 20 batches of 64


def atent(*arguments: str) -> str:
    command = [sys.executable, "-m", "atent", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def weights(run: Path) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(load_file(run / "best.safetensors").items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def rows(run: Path) -> str:
    """A digest of all lines except those of costs: they contain times, and checksums that depend on the times."""
    digest = hashlib.sha256()
    for path in sorted(run.glob("*/*.jsonl")):
        digest.update(path.name.encode())
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "cost" not in line:
                digest.update(json.dumps(line, sort_keys=True).encode())
    return digest.hexdigest()


def tables(run: Path) -> str:
    shown = atent("show", str(run)) + atent("show", str(run), "--markdown")
    return hashlib.sha256(re.sub(r"[\d,.]+ s\b", "", shown).replace(str(run), "RUN").encode()).hexdigest()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        atent("train", "demo", "--out", str(run), "--threads", "1", *(f"--set={change}" for change in TRAIN))
        atent("attack", str(run), "--suite", "quick", "--examples", "100", "--threads", "1")
        atent("certify", str(run), "--sigma", ".25", "--n", "500", "--examples", "5", "--threads", "1")
        for name, part in (("weights", weights), ("rows", rows), ("tables", tables)):
            print(f"{name:8} {part(run)[:16]}")
