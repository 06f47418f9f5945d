"""Files that atent wrote, damaged, and read again by every command. What remains must not give other numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from atent.storage.files import load_tensors
from campaign.damage import harm
from campaign.inside import command
from campaign.toy_run import ATTACK, CERTIFY, NETWORK, prepare_run, train
from campaign.verdict import Draw, Ended, Kind, Outcome, faults_of

AGAIN = ["--save-images", "--batch", "4"]
READERS: dict[str, list[str]] = {
    "train": train("--set", "recoveries=1"),
    "longer": train("--set", "recoveries=1", "--more-epochs", "1"),
    "attack": [*ATTACK, *AGAIN],
    "checks": [*ATTACK, "--checks", "--threat", "l2:0.5"],
    "within": [*ATTACK[:2], *ATTACK[4:], "--suite", "quick", "--within", "20"],
    "certify": [*CERTIFY, "--attack", "smooth-pgd", "--set", "steps=1", "--draws", "2"],
    "show": ["show", "run", "--json"],
    "table": ["show", "run", "--classes"],
    "compare": ["compare", "run", "other", "--csv"],
    "verify": ["verify", "run", "--model", NETWORK, "--threads", "1", "--device", "cpu"],
    "export": ["export", "run", "--to", "hub", "--model", NETWORK],
    "report": ["report", "run", "--out", "report.html"],
    "recipe": ["show", "run/recipe.json"],
    "remove": ["show", "--remove", "run/attack"],
    "start": ["train", "recipe.toml", "--out", "new", "--weights", "run", "--threads", "1", "--device", "cpu"],
}
WEIGHTS = [6, 2, 6, 1, 2, 4, 6, 4, 3, 4, 2, 1, 1, 2, 2]


def prepare(place: Path) -> None:
    prepare_run(place)
    shutil.copytree(place / "run", place / "other")
    ended = command("show", "run", "--json")
    (place / "records.json").write_text(ended.out)


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    files = sorted(path for path in (folder / "run").rglob("*") if path.is_file())
    path = draw.choice(files)
    way = harm(draw, path)
    verb = draw.choices(list(READERS), WEIGHTS)[0]
    words = [str(path.relative_to(folder)) if word == "run/attack" else word for word in READERS[verb]]
    ended = command(*words, patience=8)
    hangs = ["hangs: interrupted after 8 s"] if ended.code == 130 else []
    faults = hangs + faults_of(ended) + wrong_numbers(verb, ended, prepared, folder)
    return Outcome(f"{path.relative_to(folder)}: {way}; atent {' '.join(words)}", tuple(faults))


MADE = {"attack": "attack/pgd-2-linf-0.1-*.jsonl", "certify": "certify/*.jsonl", "within": "sample/*.jsonl"}


def wrong_numbers(verb: str, ended: Ended, prepared: Path, folder: Path) -> list[str]:
    """What a command that succeeded states, against what the undisturbed one stated."""
    if ended.code != 0:
        return []
    if verb == "show":
        known = json.loads((prepared / "records.json").read_text())
        found = [one for one in json.loads(ended.out) if one not in known]
        # The first rows of a sample are a sample, with a wider interval.
        return [f"another record: {one}" for one in found if one.get("kind") != "estimate"]
    if verb in MADE:
        return [
            f"other rows in {path.relative_to(prepared)}"
            for path in sorted((prepared / "run").glob(MADE[verb]))
            if not (mine := folder / path.relative_to(prepared)).is_file() or rows(mine) != rows(path)
        ]
    if verb == "train" and (folder / "run" / "last.safetensors").is_file():
        return different_weights(folder / "run", prepared / "run", ("last", "best"))
    return []


def rows(path: Path) -> list[Any]:
    """The rows without their cost, which has seconds."""
    lines = [json.loads(line) for line in path.read_bytes().rstrip(b"\0").splitlines()]
    return [line for line in lines[1:] if "index" in line]


def different_weights(run: Path, other: Path, files: tuple[str, ...]) -> list[str]:
    """The files of two runs whose tensors are not the same, bit for bit."""
    found = []
    for name in files:
        if not (run / f"{name}.safetensors").is_file():
            found.append(f"{name} is missing")
            continue
        mine, theirs = (load_tensors(one / f"{name}.safetensors")[0] for one in (run, other))
        if mine.keys() != theirs.keys() or any(not torch.equal(mine[key], theirs[key]) for key in mine):
            found.append(f"{name} has other weights")
    return found


OWN_FILES = Kind("own files", play, prepare, batch=200, full=10_000, short=200)
