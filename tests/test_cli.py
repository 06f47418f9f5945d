import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from atent.cli import main
from atent.models import MODELS, Shape
from atent.report.tables import results
from atent.storage.files import load_tensors

TINY = ["epochs=1", "validation=5800", "batch=50", "monitor_examples=20", "monitor.steps=2", "defense.steps=2"]
SETTINGS = [f"--set={setting}" for setting in TINY]


def atent(*arguments: object) -> int:
    """Run the command line in this process; its exit code."""
    before, sys.argv = sys.argv, ["atent", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


def assert_refused(capsys: pytest.CaptureFixture[str], words: list[str], *arguments: object) -> None:
    """The command ends with exit code 2 and one line that has the words; nothing is written to `runs`."""
    assert atent(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert not Path("runs").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short training."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert atent("train", "demo", "--out", folder, "--threads", 1, *SETTINGS) == 0
    return folder


def test_training_makes_the_promised_files_and_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {path.name for path in run.iterdir()} >= {
        "recipe.json",
        "environment.json",
        "train.jsonl",
        "last.safetensors",
        "best.safetensors",
    }
    assert atent("train", "demo", "--out", run, "--threads", 1, *SETTINGS) == 0  # finished: only the table again
    printed = capsys.readouterr().out
    assert "held-out images" in printed
    assert "APGD-CE (steps 2) linf:0.3" in printed
    assert f"atent attack {run}" in printed


def test_attack_takes_a_run_or_a_weights_file_with_the_same_result(run: Path, tmp_path: Path) -> None:
    common = ["--examples", 20, "--set", "steps=3", "--threads", 1]
    assert atent("attack", run, *common) == 0
    mine, foreign = tmp_path / "mine.safetensors", tmp_path / "foreign.pt"
    shutil.copy(run / "best.safetensors", mine)  # carries its recipe
    torch.save(load_tensors(mine)[0], foreign)
    named = ["--model", "small-cnn", "--data", "mnist-small", "--threat", "linf:0.3"]
    assert atent("attack", mine, *common, "--out", tmp_path / "one") == 0
    assert atent("attack", foreign, *named, *common, "--out", tmp_path / "two") == 0
    found = [results(folder)[0]._replace(run="") for folder in (run, tmp_path / "one", tmp_path / "two")]
    assert found[0] == found[1] == found[2]


def test_another_networks_rows_are_not_mixed_in(run: Path, tmp_path: Path) -> None:
    other = MODELS["small-cnn"](Shape((1, 28, 28), 10))
    torch.save(other.state_dict(), tmp_path / "other.pt")
    common = ["--examples", 20, "--set", "steps=2", "--threads", 1, "--out", tmp_path]
    assert atent("attack", run, *common) == 0
    named = ["--model=small-cnn", "--data=mnist-small", "--threat=linf:0.3"]
    assert atent("attack", tmp_path / "other.pt", *named, *common) == 0
    lines = results(tmp_path)
    assert len({line.run for line in lines}) == 2
    assert not any(line.attack == "worst case" for line in lines)


def test_rows_of_the_smoothed_network_are_not_mixed_in(run: Path, tmp_path: Path) -> None:
    common = ["--examples", 6, "--set", "steps=2", "--threads", 1, "--out", tmp_path]
    assert atent("attack", run, *common) == 0
    for attack in ("smooth-pgd", "pgd"):
        smooth = ["--smooth=0.25", "--draws=2", "--attack", attack]
        assert atent("attack", run, *smooth, "--threat=l2:0.5", *common) == 0
    assert atent("attack", run, "--threat=l2:0.5", *common) == 0
    lines = results(tmp_path)
    smoothed = f"{tmp_path.name}, smoothed 0.25, 2 draws"
    assert {line.run for line in lines} == {tmp_path.name, smoothed}
    assert [line.run for line in lines if line.attack == "worst case"] == [smoothed]


@pytest.mark.parametrize("folder", ["attack", "certify"])
@pytest.mark.parametrize(
    ("content", "words"),
    [("", "not a header"), ("[1, 2]\n", "not a header"), ("{}\n", "not a header"), ("{\n", "not a header")],
)
def test_a_file_that_is_not_ours_is_told_in_a_line(
    folder: str, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "odd.jsonl").write_text(content)
    (tmp_path / "recipe.json").write_text("{}")
    assert atent("show", tmp_path) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_attack_again_does_nothing_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["attack", run, "--attack", "atent-chain", "--examples", 10, "--set", "steps=2", "--threads", 1]
    assert atent(*command) == 0
    (file,) = (path for path in (run / "attack").iterdir() if path.name.startswith("atent-2"))
    first, table = file.read_text(), capsys.readouterr().out
    assert atent(*command) == 0
    assert file.read_text() == first
    assert capsys.readouterr().out == table
    assert "ATENT-2" in table


def test_show_prints_recipes_and_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("show", "demo") == 0
    assert '"direction": "steepest"' in capsys.readouterr().out  # a default that the file does not name
    assert atent("attack", run, "--examples", 10, "--set", "steps=2", "--threads", 1) == 0
    capsys.readouterr()
    assert atent("show", run, "--markdown") == 0
    assert "| tiny | mnist-small | linf:0.3 | PGD-2 | 10 |" in capsys.readouterr().out


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("list") == 0
    printed = capsys.readouterr().out
    for name in ("mnist-linf-pgd-quick", "wrn-34-10", "pgd-at", "atent-chain", "cifar10"):
        assert name in printed
    assert atent("list", "attacks") == 0
    assert "wrn-34-10" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "demoo"], ["demoo", "mnist-linf-atent-paper"]),
        (["train", "mnist-linf-atent-fast"], ["mnist-linf-atent-fast is now called mnist-linf-pgd-quick"]),
        (["show", "mnist-linf-atent-fast"], ["mnist-linf-atent-fast is now called mnist-linf-pgd-quick"]),
        (["train", "demo", "--set", "epoch=1"], ["epoch", "epochs"]),
        (["train", "demo", "--set", "epochs"], ["epochs", "key=value"]),
        (["train", "demo", "--data", "svhn"], ["svhn", "mnist-small", "a folder", ".npz"]),
        (["train", "demo", "--data", "{pixels}"], ["pixels.npz", "x[0, 3, 3] = nan"]),
        (["train", "demo", "--set", "resize=32"], ["resize = 32", "mnist-small"]),
        (["train", "demo", "--set", "test_share=1.5"], ["test_share = 1.5", "less than 1"]),
        (["train", "demo", "--set", "patience=2", "--set", "validation=0"], ["patience = 2", "validation = 0"]),
        (["train", "demo", "--weights", "nowhere.pt"], ["no weights at nowhere.pt"]),
        (["train", "demo", "--weights", "{evil}"], ["cannot read weights from", "evil.pt"]),
        (["train", "demo", "--weights", "{foreign}", "--model", "lenet5"], ["foreign.pt does not fit", "--reset"]),
        (["train", "demo", "--reset", "classifier.fc3"], ["classifier.fc3", "--weights"]),
        (["train", "demo", "--freeze", "head"], ["head", "classifier.fc3"]),
        (["train", "demo", "--model", "timm:resnet18"], ["timm:resnet18"]),
        (["train", "demo", "--model", "torchvision:resnet18"], ["torchvision:resnet18"]),
        (["train", "demo", "--workers", "0"], ["workers 0", "1 or more"]),
        (
            ["train", "demo", "--data", "mnist", "--data-dir", "nowhere"],
            ["train-images-idx3-ubyte", "nowhere", "--data-dir"],
        ),
        (["train", "demo", "--model", "vgg"], ["vgg", "small-cnn"]),
        (["train", "demo", "--model", "json:loads"], ["json:loads"]),
        (["train", "demo", "--threads", "0"], ["--threads 0"]),
        (["train", "demo", "--device", "cuda:99"], ["cuda:99", "cpu"]),
        (["train", "demo", "--device", "toaster"], ["toaster", "cpu"]),
        (["train", "demo", "--set", "threat=linf:-0.1"], ["-0.1", ">= 0"]),
        (["train", "demo", "--set", "validation=6000"], ["6000", "5999"]),
        (["train", "demo", "--out", "/proc/nowhere"], ["/proc/nowhere"]),
        (["bogus"], ["bogus"]),
        (["attack"], ["target"]),
        (["attack", "{run}", "--examples", "ten"], ["--examples"]),
        (["attack", "nowhere"], ["no weights at nowhere"]),
        (["attack", "nowhere.pt", "--model", "small-cnn", "--data", "mnist-small"], ["nowhere.pt"]),
        (["attack", "{foreign}"], ["--model"]),
        (["attack", "{foreign}", "--model", "small-cnn"], ["--data"]),
        (["attack", "{foreign}", "--model", "small-cnn", "--data", "mnist-small"], ["--threat"]),
        (["attack", "{run}", "--attack", "json:loads"], ["json:loads"]),
        (["attack", "{run}", "--set", "name=atent-chain"], ["--attack"]),
        (["attack", "{run}", "--device", "meta"], ["meta", "cpu"]),
        (["train", "demo", "--set", "defense.name=json:loads"], ["json:loads"]),
        (["train", "demo", "--set", "defense.tolerance=0.99", "--set", "defense.share=0.5"], ["0.99", "0.5"]),
        (["train", "demo", "--set", "optimizer.nesterov=true", "--set", "optimizer.momentum=0"], ["nesterov"]),
        (["attack", "{run}", "--attack", "magic"], ["magic", "pgd"]),
        (["attack", "{run}", "--set", "stepz=3"], ["stepz", "steps", "restarts"]),
        (["attack", "{run}", "--set", "steps=0"], ["steps", "0"]),
        (["attack", "{run}", "--examples", "0"], ["0", "1 to 2000"]),
        (["attack", "{run}", "--threat", "l3:1"], ["l3:1", "linf"]),
        (["attack", "{run}", "--model", "lenet5"], ["best.safetensors", "does not fit"]),
        (["show", "nowhere"], ["nowhere", "demo"]),
        (["list", "cars"], ["cars", "recipes"]),
    ],
)
def test_mistakes_get_one_clear_line(
    run: Path, tmp_path: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign.pt"
    torch.save(load_tensors(run / "best.safetensors")[0], foreign)
    evil, pixels = tmp_path / "evil.pt", tmp_path / "pixels.npz"
    evil.write_bytes(pickle.dumps(subprocess.Popen))
    spoiled = np.zeros((20, 8, 8))
    spoiled[0, 3, 3] = np.nan
    np.savez(pixels, x=spoiled, y=np.arange(20) % 2)
    places = {"run": run, "foreign": foreign, "evil": evil, "pixels": pixels}
    capsys.readouterr()
    out = ["--out", run.parent / "never"] if arguments[:1] == ["train"] and "--out" not in arguments else []
    assert atent(*(argument.format(**places) for argument in arguments), *out) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert not (run.parent / "never").exists()


def test_another_recipe_does_not_overwrite_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "last.safetensors").read_bytes()
    assert atent("train", "demo", "--out", run, *SETTINGS, "--set", "seed=5") == 2
    assert "different: seed" in capsys.readouterr().err
    assert (run / "last.safetensors").read_bytes() == before


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atent", "train", "demo", f"--out={tmp_path}", "--threads=1", *SETTINGS]
    process = subprocess.Popen([*command, "--set=epochs=500"], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this batch; press Ctrl-C again to stop now\n" in said
    saved = f"{tmp_path}/last.safetensors"
    assert re.search(
        rf"stopped by SIGINT; saved: {saved} \(epoch \d+, batch \d+\). Run the same command to resume.", said
    )
    assert "Traceback" not in said


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.argv = ['atent', '--help']; import atent.cli\ntry: atent.cli.main()\nexcept SystemExit: pass\n"
    )
    check = code + "assert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    for command in ("train", "attack", "certify", "list", "show"):
        assert command in done.stdout
