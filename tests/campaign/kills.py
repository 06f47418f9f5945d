"""Kills at write points and at random moments, again on the resume: the result is that of an undisturbed run."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from atent.data import download
from atent.data.published import SOURCES, Source
from atent.training.extend import MARK
from campaign import toy_table
from campaign.forked import attempt
from campaign.own_files import different_weights, rows
from campaign.toy_run import ATTACK, CERTIFY, RECIPE, done, prepare_run, train
from campaign.verdict import Draw, Ended, Kind, Outcome, faults_of
from campaign.write_points import PHASES, Points

TOY = "toy-set"
FILES = {"train-images": bytes(range(256)) * 300, "train-labels": b"labels" * 50}
SINGLE: dict[str, list[str]] = {
    "train": train("--set", "recoveries=1"),
    "attack": [*ATTACK, "--save-images", "--batch", "4"],
    "certify": CERTIFY,
    "fetch": ["data", "fetch", TOY, "--data-dir", "data"],
    "report": ["report", "base", "--out", "report.html"],
    "longer": ["train", "recipe.toml", "--out", "base", "--more-epochs", "1", *train()[4:], "--set", "recoveries=1"],
}
TABLES = {"reproduce": [*toy_table.REPRODUCE, "1"], "reproduce in two": [*toy_table.REPRODUCE, "2"]}
VERBS = SINGLE | TABLES
AT_POINTS, AT_MOMENTS = [5, 5, 4, 2, 1, 3, 4, 1], [5, 5, 4, 1, 1, 3, 3, 2]  # how often each is drawn
EPOCHS = int(RECIPE["epochs"])
NEEDED = {"attack": "run", "certify": "run", "report": "base", "longer": "base"}


def prepare(place: Path) -> None:
    """The undisturbed results of commands, and how many write points each has."""
    prepare_run(place)
    mirror = place / "mirror"
    mirror.mkdir()
    for name, content in FILES.items():
        (mirror / f"{name}.gz").write_bytes(gzip.compress(content))
    counts = {}
    for verb, words in VERBS.items():
        home = place / "undisturbed" / verb
        home.mkdir(parents=True)
        furnish(verb, place, home)
        os.chdir(home)
        counter = Points(told=home / "count")
        done(attempt(words, partial(ready, place, counter)))
        counts[verb] = int((home / "count").read_text())
    counts["reproduce in two"] = counts["reproduce"] // 3  # each process counts its own: of three networks
    (place / "counts.json").write_text(json.dumps(counts))


def prepare_once(place: Path) -> None:
    """As `prepare`; a copy where another kind has prepared it."""
    made = place.parent / KILLS.name.replace(" ", "-")
    if made.is_dir():
        shutil.copytree(made, place)
    else:
        prepare(place)


def furnish(verb: str, prepared: Path, home: Path) -> None:
    """What a command needs: the data, a recipe, a trained run without rows or with them."""
    for name in ("data.npz", "recipe.toml"):
        shutil.copy(prepared / name, home / name)
    if verb in NEEDED:
        shutil.copytree(prepared / "run", home / NEEDED[verb])
    if verb in ("attack", "certify"):
        for name in ("attack", "certify", "sample", "bracket", "checks"):
            shutil.rmtree(home / "run" / name, ignore_errors=True)


def ready(prepared: Path, points: Points) -> None:
    """In the child: a data set that comes from files, a short table, and the death that is planned."""
    SOURCES[TOY] = Source(
        {"train": tuple(FILES), "test": ()},
        {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in FILES.items()},
        lambda _: (np.zeros(0, np.uint8), np.zeros(0, np.uint8)),
        (1, 1, 1), ("a",), (0.0,), (1.0,), (0, 0),
    )  # fmt: skip
    download.DOWNLOADERS[TOY] = {"mirror": download.gzipped_files((prepared / "mirror").as_uri())}
    toy_table.install()
    points.install()


def play_points(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    counts = json.loads((prepared / "counts.json").read_text())
    verb = draw.choices(list(VERBS), AT_POINTS)[0]
    furnish(verb, prepared, folder)
    told, faults = [], list[str]()
    for _ in range(draw.choice([1, 1, 2, 3])):
        points = Points(draw.randrange(counts[verb]), draw.choice(PHASES), draw.random() < 0.5, draw.randrange(1000))
        ended = attempt(VERBS[verb], partial(ready, prepared, points))
        told.append(f"{'power cut' if points.power else 'kill'} {points.phase} point {points.at}: {ended.code}")
        if ended.code != -signal.SIGKILL:
            faults += faults_of(ended, (0, 2) if verb == "reproduce in two" else (0,))  # 2: a worker was killed
    return Outcome(f"{verb}: {'; '.join(told)}", (*faults, *resumed(verb, prepared, folder)))


def resumed(verb: str, prepared: Path, folder: Path) -> list[str]:
    """The faults of the same command once more, to its end."""
    before, times = (toy_table.finished(folder) if verb in TABLES else {}), (_ends(folder) if verb == "longer" else 0)
    ended = attempt(VERBS[verb], lambda: ready(prepared, Points()))
    if found := faults_of(ended, (0,)):
        return found
    if times:  # each one that ended adds an epoch, and no other
        epochs = len((folder / "base" / "train.jsonl").read_bytes().splitlines())
        return [] if epochs == EPOCHS + times + 1 else [f"{epochs} epochs after {times + 1} commands that ended"]
    return toy_table.repeated(before) + different(verb, prepared / "undisturbed" / verb, folder)


def _ends(folder: Path) -> int:
    """How many `--more-epochs 1` have ended: the mark of one that has not is left."""
    marks = [int(path.name.removeprefix(MARK)) for path in (folder / "base").glob(f"{MARK}*")]
    epochs = len((folder / "base" / "train.jsonl").read_bytes().splitlines())
    return min([epochs, *(mark - 1 for mark in marks)]) - EPOCHS


def different(verb: str, reference: Path, folder: Path) -> list[str]:
    """What a command left, against what the undisturbed one did."""
    found = [f"left behind: {path.name}" for path in folder.rglob("*.part")]
    if verb in ("train", "longer"):
        run, other = (home / ("run" if verb == "train" else "base") for home in (folder, reference))
        logs = [[json.loads(line) | {"seconds": 0} for line in (one / "train.jsonl").open()] for one in (run, other)]
        found += different_weights(run, other, ("last", "best"))
        found += [] if logs[0] == logs[1] else ["another log"]
    elif verb in ("attack", "certify"):
        for path in (reference / "run" / verb).glob("*.jsonl"):
            mine = folder / path.relative_to(reference)
            found += [] if mine.is_file() and rows(mine) == rows(path) else [f"other rows in {mine.name}"]
        for path in (reference / "run" / verb).glob("*.npz"):
            found += _different_arrays(folder / path.relative_to(reference), path)
        found += [f"{path.name} is left" for path in (folder / "run" / verb).glob("*.points")]
    elif verb in TABLES:
        found += toy_table.different_tables(folder, reference)
    elif verb == "fetch":
        home = folder / "data" / TOY
        found += [f"another {name}" for name, content in FILES.items() if (home / name).read_bytes() != content]
    elif not (folder / "report.html").read_text().rstrip().endswith("</html>"):
        found.append("the report is not whole")
    return found


def _different_arrays(path: Path, reference: Path) -> list[str]:
    with np.load(path) as mine, np.load(reference) as theirs:
        return [f"another {key} in {path.name}" for key in theirs if not np.array_equal(mine[key], theirs[key])]


def play_moments(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    """A signal at a random moment of a command, or while Python starts."""
    if draw.random() < 0.2:
        return _at_the_start(draw, folder)
    verb = draw.choices(list(VERBS), AT_MOMENTS)[0]
    furnish(verb, prepared, folder)
    told, faults = [], list[str]()
    for _ in range(draw.choice([1, 2, 3])):
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        moment = draw.uniform(0, 1.5 if verb in TABLES else 0.25)
        ended = attempt(VERBS[verb], lambda: ready(prepared, Points()), (moment, number))
        told.append(f"{number.name} after {moment:.3f} s: {ended.code}")
        if ended.code not in (-signal.SIGKILL, -signal.SIGTERM):
            faults += faults_of(ended, (0, 130, 143))
    return Outcome(f"{verb}: {'; '.join(told)}", (*faults, *resumed(verb, prepared, folder)))


def _at_the_start(draw: Draw, folder: Path) -> Outcome:
    """Ctrl-C while the program is imported, from its first line on: before that, Python itself starts."""
    moment = draw.uniform(0, 1.5)
    words = [sys.executable, "-m", "atent", *draw.choice([["list", "recipes"], ["show", "demo"], ["list", "data"]])]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a campaign in the background inherits that it is ignored
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _wait_for_start(process.pid)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    code = 130 if process.returncode == -signal.SIGINT else process.returncode
    return Outcome(f"SIGINT {moment:.2f} s after the start: {code}", tuple(faults_of(Ended(code, "", err), (0, 130))))


def _wait_for_start(pid: int) -> None:
    """Until `__main__` has taken the place of Python's handler of SIGINT, or the process has ended."""
    caught = False
    for _ in range(20_000):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        handled = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
        now = bool(int(handled.split()[1], 16) & 2)
        if (caught and not now) or "zombie" in status:
            return
        caught = caught or now
        time.sleep(0.001)


KILLS = Kind("kills at write points", play_points, prepare, batch=20, full=400, short=30)
MOMENTS = Kind("kills at random moments", play_moments, prepare_once, batch=10, full=100, short=10)
