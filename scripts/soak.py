"""Watch a process for a while: memory, file handles, threads and rate must stay flat.

python scripts/soak.py --name training --minutes 20 --rows runs/x/train.jsonl -- atent train demo --out runs/x
python scripts/soak.py --name attack --minutes 20 --pid 1234

The command, or the process with this number, is sampled every few seconds until it ends or the time is over (a command
of ours then gets SIGINT). The rate is that of the bytes that are added to `--rows`, a file or a folder, if given, else
of CPU seconds. The samples and the verdict are appended to results/soak.jsonl. Flat: the last third against the first
third after a warm-up of a tenth: memory at most 5 % and 32 MB higher, handles and threads at most 2 more, the rate at
least 0.8 times.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

RESULTS = Path(__file__).parents[1] / "results" / "soak.jsonl"


@dataclass(frozen=True)
class Sample:
    """A process, so many seconds after the start; `work` is what it has done so far."""

    seconds: float
    megabytes: float
    handles: int
    threads: int
    work: float


def sample(pid: int, began: float, rows: Path | None) -> Sample | None:
    """The process now; None if it has ended."""
    home = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines() if ":" in line)
        fields = (home / "stat").read_text().rpartition(")")[2].split()
        if "VmRSS" not in status:
            return None
        ticks = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        work = float(_size(rows)) if rows else ticks
        handles = len(list((home / "fd").iterdir()))
        megabytes = int(status["VmRSS"].split()[0]) * 1024 / 1e6
        return Sample(round(time.monotonic() - began, 1), megabytes, handles, int(status["Threads"]), work)
    except (OSError, ValueError, IndexError):
        return None


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 if there is none yet."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def judge(samples: list[Sample]) -> dict[str, object]:
    """First against last third of the samples after a warm-up, and what is not flat."""
    kept = samples[len(samples) // 10 :]
    third = len(kept) // 3
    if third < 3:
        return {"flat": False, "faults": [f"{len(samples)} samples; allowed: 11 or more"]}
    first, last = kept[:third], kept[-third:]
    memory = [median(one.megabytes for one in part) for part in (first, last)]
    handles = [max(one.handles for one in part) for part in (first, last)]
    threads = [max(one.threads for one in part) for part in (first, last)]
    rates = [(part[-1].work - part[0].work) / max(part[-1].seconds - part[0].seconds, 1e-9) for part in (first, last)]
    faults = []
    if memory[1] > max(1.05 * memory[0], memory[0] + 32):
        faults.append("memory grows")
    faults += ["file handles grow"] if handles[1] > handles[0] + 2 else []
    faults += ["threads grow"] if threads[1] > threads[0] + 2 else []
    faults += ["the rate falls"] if rates[1] < 0.8 * rates[0] else []
    return {
        "flat": not faults,
        "faults": faults,
        "megabytes": [round(one, 1) for one in memory],
        "most_megabytes": round(max(one.megabytes for one in kept), 1),
        "mean_megabytes": round(fmean(one.megabytes for one in kept), 1),
        "handles": handles,
        "threads": threads,
        "rate": [round(one, 4) for one in rates],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="what is watched, for the row")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--pid", type=int, help="a process that runs already")
    parser.add_argument("--rows", type=Path, help="a file or a folder that grows with the work")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("command", nargs="*", help="after --: the command to start and watch")
    chosen = parser.parse_args()
    if (chosen.pid is None) == (not chosen.command):
        parser.error("give --pid, or a command after --; not both")
    process = None if chosen.pid else subprocess.Popen(chosen.command)
    pid, began, samples = process.pid if process else chosen.pid, time.monotonic(), list[Sample]()
    while time.monotonic() - began < 60 * chosen.minutes and (found := sample(pid, began, chosen.rows)):
        samples.append(found)
        time.sleep(chosen.every)
        if process and process.poll() is not None:
            break
    if process and process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait()
    verdict = judge(samples)
    row = {"name": chosen.name, "seconds": samples[-1].seconds if samples else 0.0, **verdict}
    row["samples"] = [list(asdict(one).values()) for one in samples[:: max(1, len(samples) // 100)]]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with chosen.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({key: value for key, value in row.items() if key != "samples"}))
    return 0 if verdict["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
