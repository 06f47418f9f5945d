"""Which device is taken, and that it is said."""

from pathlib import Path

import pytest
import torch

from atent.machine import pick_device
from short_runs import TINY
from test_cli import atent


@pytest.mark.parametrize(("cuda", "mps", "taken"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_takes_a_gpu_if_there_is_one(cuda: bool, mps: bool, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto") == torch.device(taken)


def test_commands_pick_a_device_and_say_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cheap = ["--set=model=lenet5", "--set=defense=standard", "--set=epochs=1", "--threads=1"]
    settings = [f"--set={key}={value}" for key, value in TINY.items() if key != "epochs"]
    run = str(tmp_path / "run")
    assert atent("train", "demo", "--out", run, *settings, *cheap) == 0
    taken = pick_device("auto")
    assert f"; device: {taken}\n" in capsys.readouterr().err
    assert atent("attack", run, "--examples=2", "--set=steps=1", "--threads=1") == 0
    assert capsys.readouterr().err.startswith(f"device: {taken}\n")
    assert atent("certify", run, "--sigma=.5", "--n=100", "--examples=2", "--threads=1") == 0
    assert capsys.readouterr().err.startswith(f"device: {taken}\n")
