"""Which device is taken, and that it is said; kept memory."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atent.cli.options import TargetOptions
from atent.cli.train import train
from atent.machine import keep_freed_memory, pick_device
from atent.network import Shape
from test_cli import atent
from toys import linear


def make(shape: Shape) -> torch.nn.Module:
    return linear(torch.ones(shape.classes, 784))


@pytest.mark.parametrize(("cuda", "mps", "taken"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_takes_a_gpu_if_there_is_one(cuda: bool, mps: bool, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto") == torch.device(taken)


def test_of_several_gpus_each_process_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert pick_device("auto") == torch.device("cuda", 1)


@pytest.mark.parametrize("command", [TargetOptions, train])
def test_auto_is_the_default(command: object) -> None:
    assert inspect.signature(command).parameters["device"].default == "auto"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    [
        ["attack", "test_machine:make", "--data=mnist-small", "--threat=linf:0.1", "--set=steps=1", "--examples=2"],
        ["certify", "test_machine:make", "--data=mnist-small", "--sigma=.5", "--n=100", "--examples=2"],
        ["train", "demo", "--model=test_machine:make", "--set=defense=standard", "--set=validation=5990"],
    ],
    ids=lambda words: words[0],
)
def test_commands_say_which_device_they_took(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--set=epochs=1", "--set=monitor_examples=2"] if command[0] == "train" else []
    assert atent(*command, *more, "--out", str(tmp_path), "--threads=1") == 0
    assert f"device: {pick_device('auto')}\n" in capsys.readouterr().err


PIECES = """
import torch
from pathlib import Path
from atent.machine import keep_freed_memory, release_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
keep_freed_memory()
before = resident()
kept = []
for size in range(1, 60):
    large = [torch.ones(size * 1000) for _ in range(20)]
    kept.append(torch.ones(10))  # a small block above them, so that they are not at the end of the heap
    del large
middle = resident()
release_freed_memory()
print(middle - before, resident() - before)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="needs Linux with glibc")
def test_released_memory_leaves_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 3e6
    assert left < 0.5 * kept
