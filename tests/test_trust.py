"""Opening a file runs nothing that it names; what a user names is run, if it is what it should be."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atent.errors import UserError
from atent.evaluation.target import open_network, open_target
from atent.models import MODELS, Shape
from atent.models.weights import load_weights
from atent.storage.files import load_tensors, save_tensors, write_json
from atent.storage.run import Run
from atent.training.fit import fit
from short_runs import QUIET, TINY, tiny
from test_cli import atent

METHODS = ["defense", "optimizer", "monitor"]
NAMED = [*METHODS, "schedule"]
TRAPS = ["trap:Trap", "os:system", "foolbox:Nothing"]
SHAPE = Shape((1, 28, 28), 10)
QUICK = ["--examples", "2", "--threads", "1"]
TRAP = """
from pathlib import Path
Path("sprung").touch()

def Trap(*_, **__):
    Path("sprung").touch()
"""
COMMANDS = {
    "attack": ["attack", "{}", "--set", "steps=1"],
    "transfer": ["attack", "honest.safetensors", "--set", "steps=1", "--transfer", "{}"],
    "certify": ["certify", "{}", "--sigma", "1", "--n", "100"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module that leaves a mark when it is imported and when it is called."""
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return tmp_path


def table(part: str = "", name: str = "") -> dict[str, Any]:
    """A recipe's table in which a part is what `name` makes; called with its field, `os.system` would leave a mark."""
    recipe: dict[str, Any] = tiny().model_dump(mode="json")
    changes = {"": {}, "model": {"model": name}}
    return recipe | changes.get(part, {part: {"name": name, "command": "touch sprung"}})


def written(form: str, recipe: dict[str, Any]) -> str:
    """A checkpoint or a run folder with small-cnn's weights and this recipe."""
    weights = MODELS["small-cnn"](SHAPE).state_dict()
    if form == "header":
        save_tensors(Path("given.safetensors"), weights, {"recipe": recipe})
        return "given.safetensors"
    run = Run(Path("given"))
    run.folder.mkdir()
    save_tensors(run.best, weights, {"recipe": recipe})
    write_json(run.recipe_file, recipe)
    return "given"


def honest() -> None:
    written("header", table())
    Path("given.safetensors").rename("honest.safetensors")


def toml(recipe: dict[str, Any]) -> str:
    """The recipe as a TOML file: what JSON and TOML write alike, with dotted keys."""
    flat = [(f"{key}.{k}", v) for key, value in recipe.items() if isinstance(value, dict) for k, v in value.items()]
    plain = [(key, value) for key, value in recipe.items() if not isinstance(value, dict)]
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in plain + flat if value is not None]
    Path("given.toml").write_text("".join(lines))
    return "given.toml"


def assert_nothing_ran() -> None:
    assert not Path("sprung").exists()
    assert "trap" not in sys.modules


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line of what went wrong."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return str(line)


@pytest.mark.parametrize("form", ["header", "run"])
@pytest.mark.parametrize(
    ("part", "name"), [*((part, "trap:Trap") for part in NAMED), *(("monitor", name) for name in TRAPS[1:])]
)
def test_methods_that_a_file_names_are_not_touched(part: str, name: str, form: str) -> None:
    honest()
    given = written(form, table(part, name))
    for command in COMMANDS.values():
        assert atent(*(word.format(given) for word in command), *QUICK) == 0
        assert_nothing_ran()
    if form == "run":
        assert atent("show", given) == 0
    open_target(given, examples=2)
    open_target(given, examples=2, trust=True)  # that is about the network
    open_network(given, SHAPE, "small-cnn")
    load_weights(MODELS["small-cnn"](SHAPE), Path(given))
    assert_nothing_ran()


@pytest.mark.parametrize("form", ["header", "run"])
@pytest.mark.parametrize("name", TRAPS)
def test_a_network_that_only_a_file_names_is_refused(name: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    honest()
    given = written(form, table("model", name))
    for kind, command in COMMANDS.items():
        assert atent(*(word.format(given) for word in command), *QUICK) == 2
        line = one_line(capsys)
        cure = "package.module:function" if kind == "transfer" else f"--model '{name}'"
        assert all(word in line for word in (f"{given} ", repr(name), cure, "--trust")), line
    opens: list[Callable[[], object]] = [
        lambda: open_target(given),
        lambda: open_target(given, model=""),
        lambda: open_network(given, SHAPE, "small-cnn"),
    ]
    for opened in opens:
        with pytest.raises(UserError, match=f"{name}.*--trust"):
            opened()
    load_weights(MODELS["small-cnn"](SHAPE), Path(given))
    assert_nothing_ran()


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("part", [*NAMED, "model"])
def test_showing_a_recipe_runs_nothing(part: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("show", toml(table(part, name))) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == table(part, name)
    assert_nothing_ran()


def test_weights_of_a_run_are_taken_and_nothing_else() -> None:
    given = written("run", {**table("defense", "trap:Trap"), "model": "trap:Trap"})
    settings = [f"--set={key}={value}" for key, value in (TINY | {"epochs": 1, "defense.steps": 1}).items()]
    assert atent("train", "demo", "--weights", given, "--out", "new", "--threads", "1", *settings) == 0
    assert_nothing_ran()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tiny(epochs=1), tmp_path_factory.mktemp("finished"), how=QUIET).folder


@pytest.mark.parametrize("part", [*NAMED, "model"])
@pytest.mark.parametrize("file", ["recipe.json", "last.safetensors"])
def test_resuming_compares_names_and_runs_none(file: str, part: str, finished: Path) -> None:
    recipe, run = tiny(epochs=1), Run(Path("given"))
    shutil.copytree(finished, run.folder)
    changed = table(part, "trap:Trap") | {"epochs": 1}
    if file == "recipe.json":
        write_json(run.recipe_file, changed)
    else:
        tensors, info = load_tensors(run.last)
        save_tensors(run.last, tensors, {**info, "recipe": changed})
    with pytest.raises(UserError, match=rf"different: {part}\)"):
        fit(recipe, "given", how=QUIET)
    assert_nothing_ran()


UNFIT = """
from pathlib import Path

class Silent:
    def __init__(self, **_):
        Path("sprung").touch()

class Narrow(Silent):
    def __call__(self):
        return []

class Wide(Silent):
    def __call__(self, *everything, seed):
        return everything

def function(**_):
    Path("sprung").touch()

thing = 3
"""


@pytest.mark.parametrize("part", METHODS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os:system", "is not a class but of type builtin_function_or_method; expected a class with"),
        ("unfit:function", "is not a class but of type function"),
        ("unfit:thing", "is not a class but of type int"),
        ("subprocess:Popen", "has no method __call__; expected a class with a method __call__(self, "),
        ("unfit:Silent", "has no method __call__"),
        ("unfit:Narrow", "does not fit (too many positional arguments)"),
        ("unfit:Wide", "argument: 'seed')"),
    ],
)
def test_what_is_not_a_method_is_refused_before_it_is_called(
    part: str, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("unfit.py").write_text(UNFIT)
    for command in (["train", toml(table(part, name))], ["train", "demo", "--set", f"{part}.name={name}"]):
        assert atent(*command) == 2
        line = one_line(capsys)
        assert words in line
        assert repr(name) in line
    assert_nothing_ran()
    assert not Path("runs").exists()


def test_an_attack_named_by_the_user_must_be_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert atent("attack", written("run", table()), "--attack", "os:system", "--set", "command=touch sprung") == 2
    assert "attack 'os:system' is not a class" in one_line(capsys)
    assert_nothing_ran()


def test_a_run_watched_by_a_library_that_is_absent_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit(tiny(epochs=1), tmp_path, how=QUIET)
    table = json.loads(run.recipe_file.read_text())
    run.recipe_file.write_text(json.dumps(table | {"monitor": {"name": "autoattack"}, "defense": {"name": "gone"}}))
    monkeypatch.setattr("atent.attacks.external.autoattack.import_library", lambda *_: pytest.fail("imported"))
    assert open_target(tmp_path).threat == table["threat"]
