"""What the campaign found on the command line: each was a traceback, a message of two lines, or a silent hang once."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from atent import errors
from atent.cli import main
from atent.errors import UserError, one_line, shown
from atent.methods import parse_setting


def end_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["atent", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "demo", "--set", f"epochs={'[' * 3000}"], "too long or too deep"),
        (["train", "demo", "--set", f"epochs={'9' * 5000}"], "too long or too deep"),
        (["train", "demo", "--set", f"epochs=1{'0' * 400}"], "less than or equal to 100000000"),
        (["train", "demo", "--set", "batch=9223372036854775808"], "less than or equal to"),
        (["train", "demo", "--set", "optimizer.lr=1e308"], "less than or equal to 1000000000"),
        (["train", "demo", "--set", "defense.steps=1000000000000"], "less than or equal to"),
        (["train", "demo", "--set", "resize=1000000000"], "less than or equal to 8192"),
        (["train", "demo", "--set", "monitor_draws=1000000000"], "less than or equal to 10000"),
        (["train", "demo", "--threads", "1000000000000"], "--threads 1000000000000; allowed: 1 to"),
        (["certify", "x", "--sigma", ".5", "--n", "1000000000"], "n 1000000000; allowed: 1 to 100,000,000"),
        (["certify", "x", "--sigma", ".5", "--batch", "10000000"], "100000"),
        (["reproduce", "figure1", "--status", "--processes", f"1{'0' * 400}"], "256"),
        (["attack", "a\nb\u2028c"], "no weights at a b c"),
        (["train", "\n.toml"], "recipe"),
    ],
)
def test_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert end_of(monkeypatch, *words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "source",
    [
        "raise LookupError('a\\nb')",
        "import sys; sys.exit(3)",
        "def network(:",
        "def network(shape): raise OSError('a')",
    ],
)
def test_a_module_of_a_user_may_do_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_hostile.py").write_text(source)
    try:
        assert end_of(monkeypatch, "attack", "own_hostile:network", "--data", "mnist-small", "--threads", "1") == 2
    finally:
        sys.modules.pop("own_hostile", None)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unforeseen_exception_is_one_line_and_its_traceback_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[str]:
        return ["x"][1:][0].splitlines()

    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", eval("lambda: [][0]"))  # no place of a user's file
    assert end_of(monkeypatch, "list", "recipes") == 70
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "unforeseen IndexError" in err
    path = Path(err.rpartition(" ")[2].strip())
    assert "Traceback" in path.read_text()
    path.unlink()
    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", fail)
    assert end_of(monkeypatch, "list", "recipes") == 2  # of a user: this file
    err = capsys.readouterr().err
    assert f"{Path(__file__).name}:" in err
    Path(err.rpartition(" ")[2].strip()).unlink()


@pytest.mark.parametrize(
    "error", [MemoryError("x"), RuntimeError("[enforce fail] can't allocate memory: tried 9 bytes")]
)
def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", fail)
    assert end_of(monkeypatch, "list", "recipes") == 2
    assert re.match(r"error: not enough memory \(.*\n$", capsys.readouterr().err)


def test_ctrl_c_while_another_one_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(line: str) -> None:
        del line
        signal.raise_signal(signal.SIGINT)

    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atent.cli._say", again)
    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", stopped)
    assert end_of(monkeypatch, "list", "recipes") == 130


@pytest.mark.parametrize(
    "error", [ImportError("cannot load module more than once per process"), UserError("x"), OSError("x")]
)
def test_an_error_after_ctrl_c_that_an_import_swallowed_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """As when NumPy is imported while torch is, and torch goes on without it. The next command knows nothing of it."""

    def swallow() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        fail()

    def fail() -> None:
        raise error

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", swallow)
    assert end_of(monkeypatch, "list", "recipes") == 130
    assert capsys.readouterr().err == "stopped. Run the same command to resume.\n"
    monkeypatch.setattr("atent.storage.recipe_files.recipe_names", fail)
    assert end_of(monkeypatch, "list", "recipes") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_a_module_is_imported_ends_the_process_at_once(tmp_path: Path) -> None:
    """Code that is imported may hide a KeyboardInterrupt, or abort the process at one."""
    hidden = "try:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass\n"
    (tmp_path / "own_slow.py").write_text(f"import signal\n{hidden}print('went on')\n")
    words = ["attack", "own_slow:network", "--data", "mnist-small", "--threads", "1"]
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "atent", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "stopped. Run the same command to resume."


def test_values_are_shown_in_one_short_line() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert shown(10**5000) == "(int that is too long to print)"
    assert shown(deep) == "(list that is too long to print)"
    assert shown("a\nb" * 100).endswith("...")
    assert one_line("a\r\n\x1b[31mb\u2029") == "a [31mb"
    assert len(str(UserError("x" * 10_000))) < 3000
    assert errors.reason_of(ValueError()) == "ValueError"


def test_a_setting_may_be_text() -> None:
    assert parse_setting("x=[") == ("x", "[")
