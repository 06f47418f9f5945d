"""A table of `atent reproduce` that takes a second: linear networks on a made data set, all kinds of measures.

One network starts from the other. Everything else is as for the paper's tables: the data, the folders, the files.
"""

import multiprocessing
import signal
from pathlib import Path
from typing import Any

from atent.reproduce import appendix, engine
from atent.reproduce.engine import Place, jobs
from atent.reproduce.networks import CIFAR10, NETWORKS, PLAIN
from atent.reproduce.plan import Measure, Network, Row, Table
from atent.reproduce.tables import CLEAN, attack, strong
from atent.reproduce.work import Job, work_alone
from atent.storage.run import Run
from campaign.own_files import different_weights, rows
from campaign.toy_run import NETWORK

NAME, OUT = "toy", "paper"
REPRODUCE = ["reproduce", NAME, "--out", OUT, "--processes"]
LINEAR = {"model": NETWORK}
FIRST, TUNED, OTHER = "toy-pgd-at", "toy-tuned", "toy-standard"
PGD = attack("pgd", steps=20)
PROVEN = Measure("certified", {"sigma": 0.12, "n": 100_000}, "linf:2/255", 100, covers="linf:2/255")
TABLE = Table(
    "Toy",
    ("clean", "PGD-20", "strong", "linf 2/255"),
    (
        Row("best", FIRST, {"clean": CLEAN, "PGD-20": PGD, "strong": strong(1.0), "linf 2/255": PROVEN}),
        Row("last", FIRST, {"clean": CLEAN, "PGD-20": PGD}, weights="last"),
        Row("tuned", TUNED, {"clean": CLEAN, "PGD-20": PGD}),
        Row("plain", OTHER, {"clean": CLEAN, "PGD-20": PGD}),
    ),
)
ALWAYS_NEW = (".md", ".tex", ".log", ".lock", ".part")  # tables, output, locks, and what a kill left


def install() -> None:
    """Make the table known to `atent reproduce` in this process, and in those that it starts."""
    NETWORKS[FIRST] = Network("cifar10-linf-pgd-at", {**CIFAR10, **LINEAR})
    NETWORKS[TUNED] = Network("cifar10-linf-pgd-at", {**CIFAR10, **LINEAR}, start=FIRST)
    NETWORKS[OTHER] = Network("cifar10-standard", {**PLAIN, **LINEAR})
    appendix.TABLES[NAME] = (TABLE,)
    appendix.NAMES = tuple(dict.fromkeys((*appendix.NAMES, NAME)))
    fork = multiprocessing.get_context("fork")
    vars(engine).update(start_method=lambda: fork, work_alone=_work_alone)  # a server would not know the table


def _work_alone(job: Job, log: Path) -> None:
    """As a process that a server started, without the handlers of its parent."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    work_alone(job, log)


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of what is finished, and may not be written again."""
    install()
    home = folder / OUT / "smoke"
    place = Place(home.relative_to(folder), "smoke")
    left = {job.network for job in jobs(place, TABLE.rows)}
    done = [path for path in home.rglob("*") if path.is_file() and path.suffix not in ALWAYS_NEW]
    kept = [path for path in done if path.relative_to(home).parts[0].removesuffix("-last") not in left]
    kept += [path for name in left if place.trained(name) for path in (home / name).glob("*.safetensors")]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in kept}


def repeated(before: dict[str, tuple[int, int]]) -> list[str]:
    """The files that were finished, and were written again or removed."""
    found = {name: Path(name).stat() if Path(name).exists() else None for name in before}
    same = {name: one and (one.st_ino, one.st_mtime_ns) for name, one in found.items()}
    return [f"finished, and made again: {Path(name).name}" for name, state in before.items() if same[name] != state]


def different_tables(folder: Path, reference: Path) -> list[str]:
    """What is not as in the undisturbed folder: tables, weights, logs and rows.

    A sample without rows states what the rows of its first phase state, so it may be missing.
    """
    mine, other = folder / OUT / "smoke", reference / OUT / "smoke"
    found = [f"another {NAME}.{end}" for end in ("md", "tex") if _text(mine, end) != _text(other, end)]
    for name in (FIRST, TUNED, OTHER):
        found += different_weights(mine / name, other / name, ("last", "best"))
        found += [] if _log(mine / name) == _log(other / name) else [f"another log of {name}"]
    files = [path.relative_to(other) for path in other.rglob("*.jsonl") if path.name != "train.jsonl" and rows(path)]
    missing = [path for path in files if not (mine / path).is_file()]
    found += [f"{path} is missing" for path in missing]
    return found + [
        f"other rows in {path}" for path in files if path not in missing and rows(mine / path) != rows(other / path)
    ]


def _text(home: Path, end: str) -> str:
    return (home / f"{NAME}.{end}").read_text(encoding="utf-8")


def _log(run: Path) -> list[dict[str, Any]]:
    return [line | {"seconds": 0} for line in Run(run).history()]
