"""The command under torchrun, on one host and on two in network namespaces: lost processes and hosts, and restarts.

These tests take minutes, because each process imports torch. `make slow` runs them.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atent.storage.files import load_tensors
from atent.storage.run import Run
from short_runs import assert_same_run

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ATENT_SLOW"), reason="takes minutes; `make slow` runs it"),
    pytest.mark.timeout(900),
]
CHANGES = "validation=5600 batch=50 epochs=2 monitor_examples=20 monitor.steps=2 defense.steps=2"
TRAIN = ["train", "demo", "--checkpoint-batches=1", *(f"--set={change}" for change in CHANGES.split())]
ONE_HOST = ["--standalone", "--nproc-per-node=2"]
LOST = "another process of this job was lost"


class Job(subprocess.Popen[str]):
    """A torchrun, with the processes that it started."""

    def worker(self, rank: int) -> int:
        """The number of the process with this rank."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(self.pid) and f"RANK={rank}\0".encode() in (folder / "environ").read_bytes():
                    return int(folder.name)
        raise ProcessLookupError(f"no process with rank {rank}")

    def has_worker(self, rank: int) -> bool:
        try:
            return self.worker(rank) > 0
        except ProcessLookupError:
            return False

    def finish(self) -> str:
        """Its errors, after it ended as it should."""
        _, errors = self.communicate()
        assert self.returncode == 0, errors
        return errors

    def fail(self) -> str:
        _, errors = self.communicate()
        assert self.returncode != 0
        return errors


def launch(options: list[str], arguments: list[str], inside: tuple[str, ...] = (), **variables: str) -> Job:
    command = [*inside, sys.executable, "-m", "torch.distributed.run", *options, "-m", "atent", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return Job(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(run: Run, job: subprocess.Popen[str]) -> None:
    """Until the first checkpoint is there."""
    while not run.last.exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted training of two processes."""
    out = tmp_path_factory.mktemp("whole") / "run"
    errors = launch(ONE_HOST, [*TRAIN, f"--out={out}"]).finish()
    assert errors.count("epoch 2/2:") == 1
    return Run(out)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_job_in_one_line_and_the_same_command_resumes(
    tmp_path: Path, whole: Run, victim: int
) -> None:
    run = Run(tmp_path / "run")
    job = launch(ONE_HOST, [*TRAIN, f"--out={run.folder}"])
    wait_for(run, job)
    os.kill(job.worker(victim), signal.SIGKILL)
    killed = time.monotonic()
    errors = job.fail()
    assert time.monotonic() - killed < 15
    assert errors.count(LOST) == 1
    assert errors.count("Traceback") == 1  # torchrun's own, of the process that it lost
    assert "stopping" not in errors
    assert load_tensors(run.last)[1]["epoch"] < 2
    launch(ONE_HOST, [*TRAIN, f"--out={run.folder}"]).finish()
    assert_same_run(whole, run)


def test_torchrun_restarts_from_the_last_checkpoint(tmp_path: Path, whole: Run) -> None:
    run = Run(tmp_path / "run")
    job = launch([*ONE_HOST, "--max-restarts=1"], [*TRAIN, f"--out={run.folder}"])
    wait_for(run, job)
    os.kill(job.worker(1), signal.SIGKILL)
    errors = job.finish()
    assert errors.count(LOST) == 1
    assert errors.count("resuming from epoch") == 1
    assert_same_run(whole, run)


def test_a_stop_saves_and_an_error_is_one_line(tmp_path: Path, whole: Run) -> None:
    run = Run(tmp_path / "run")
    job = launch(ONE_HOST, [*TRAIN, f"--out={run.folder}"])
    wait_for(run, job)
    job.send_signal(signal.SIGTERM)
    assert job.fail().count("stopped by SIGTERM; saved: ") == 1
    wrong = launch(ONE_HOST, [*TRAIN, f"--out={run.folder}", "--set=epochs=3"]).fail()
    assert wrong.count("error: ") == 1
    assert "contains a run of another recipe (different: epochs)" in wrong
    launch(ONE_HOST, [*TRAIN, f"--out={run.folder}"]).finish()
    assert_same_run(whole, run)


def test_a_budget_ends_in_all_processes_together(tmp_path: Path) -> None:
    """Batches of 51 images, of which the processes have 25 and 26. A busy machine may be late by a batch or two."""
    run, seconds = Run(tmp_path / "run"), 30
    errors = launch(ONE_HOST, [*TRAIN, "--set=batch=51", f"--minutes={seconds / 60}", f"--out={run.folder}"]).finish()
    assert errors.count("planned 0:00:30, took 0:00:") == 1
    assert 0.9 * seconds <= load_tensors(run.last)[1]["spent"]["used"] <= 1.3 * seconds
    assert run.history()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them."""
    if not shutil.which("ip"):
        pytest.skip("no program ip (iproute2)")
    names = [f"atent{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def on_two_hosts(hosts: list[str], out: Path) -> list[Job]:
    """A torchrun on each host, as docs/scale.md has it."""
    jobs = []
    for number, host in enumerate(hosts):
        options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400"]
        options += ["--rdzv-id=job", f"--rdzv-conf=is_host={number == 0}", f"--local-addr=10.77.0.{number + 1}"]
        inside = ("ip", "netns", "exec", host)
        jobs.append(launch(options, [*TRAIN, f"--out={out}"], inside, GLOO_SOCKET_IFNAME="veth0"))
    return jobs


@pytest.mark.parametrize("loss", ["process", "host"])
def test_two_hosts_train_together_and_a_lost_one_ends_the_job(
    tmp_path: Path, whole: Run, hosts: list[str], loss: str
) -> None:
    """A process of the second host is killed, or the host loses its network. After that, the same command resumes."""
    run = Run(tmp_path / "run")
    first, second = on_two_hosts(hosts, run.folder)
    wait_for(run, first)
    if loss == "process":
        os.kill(second.worker(1), signal.SIGKILL)
    else:
        ip("-n", hosts[1], "link", "set", "veth0", "down")
    lost = time.monotonic()
    while first.has_worker(0):
        assert time.monotonic() - lost < 15
        time.sleep(0.1)
    ip("-n", hosts[1], "link", "set", "veth0", "up")
    errors = [job.fail() for job in (first, second)]
    assert errors[0].count(LOST) == 1
    for job in on_two_hosts(hosts, run.folder):
        job.finish()
    assert_same_run(whole, run)
