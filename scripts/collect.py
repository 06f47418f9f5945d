"""Copy runs to results/: recipe, log and rows, without weights and without the place of the data.

python scripts/collect.py runs/reproduce/cpu/mnist-linf-* --to results/reproduce
"""

import argparse
import shlex
import shutil
from pathlib import Path

from atent.storage.files import read_json, write_json

LEFT = shutil.ignore_patterns("*.safetensors", ".*", "*.npz", "*.part")
PLACES = {"--data-dir": "DATA"}  # options whose value is a place on one machine


def collect(run: Path, to: Path, name: str | None = None) -> Path:
    """Copy a run into the folder `to`, under its own name or another; what is there is replaced."""
    kept = to / (name or run.name)
    shutil.copytree(run, kept, ignore=LEFT, dirs_exist_ok=True)
    record = kept / "environment.json"
    if record.exists():
        found = read_json(record)
        for start in found["starts"]:
            start["command"] = without_places(start["command"])
        write_json(record, found)
    return kept


def without_places(command: str) -> str:
    words = shlex.split(command)
    for number, word in enumerate(words[:-1]):
        if word in PLACES:
            words[number + 1] = PLACES[word]
    return shlex.join(words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    for run in given.runs:
        print(collect(run, given.to))
