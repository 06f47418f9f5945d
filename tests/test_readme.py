"""The front page keeps its promises: commands and Python run, tables and picture are those that the rows give."""

import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from atent.data.download import DOWNLOADERS
from atent.defenses import DEFENSES
from atent.defenses.cost import passes_per_image
from atent.evaluation.suites import SUITES
from atent.optim.outside import make_rates
from atent.recipe import load_recipe
from atent.zoo.index import read_index
from test_cli import atent
from toy_zoo import toy_zoo
from toys import own_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMOKE = {
    "train": "--set epochs=1 --set validation=5900 --set monitor_examples=9 --set monitor.steps=2"
    " --set defense.steps=2",
    "attack": "--examples 10 --set steps=2",
    "certify": "--examples 3",
    "plan": "--no-probe",
}
COMMAND_PAGES = ("README.md", "docs/commands.md", "docs/results.md")  # in the order in which a new user tries them


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def shell_lines(page: str) -> list[str]:
    """The lines of a page's shell blocks, continued lines joined."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [line for block in blocks("sh", text) for line in block.replace("\\\n", " ").splitlines()]


def test_front_page_is_short_and_its_code_fits_80_columns() -> None:
    assert len(README.splitlines()) <= 150
    assert max(len(line) for block in blocks(r"\w*") for line in block.splitlines()) <= 80


def test_commands_run_at_smoke_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pages' order; full MNIST and the stranger's weights are replaced by small stand-ins."""
    monkeypatch.setenv("ATENT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    lines = [line.partition("#")[0] for page in COMMAND_PAGES for line in shell_lines(page)]
    commands = dict.fromkeys(line.strip() for line in lines if line.startswith("atent "))  # each once
    assert len(commands) >= 20
    if (named := zoo_names(" ".join(commands))) - read_index().keys():  # stand-ins where one is not stored yet
        toy_zoo(monkeypatch, tmp_path / "toys", *sorted(named))
    for command in commands:
        words = command.replace("--data mnist ", "--data mnist-small ")
        if words.startswith("atent data fetch"):  # tests do not download
            assert words.split()[-1] in DOWNLOADERS
            continue
        if "my_package" in words or "runs/mine" in words:  # as in docs/your-own.md, whose commands are run below
            continue
        words = words.replace("their-weights.pt", "runs/demo/best.safetensors")
        kind = words.split()[1]
        smoke = "--examples 3" if "--suite" in words else SMOKE.get(kind, "")
        if "--within 1" in words:  # that is about all images; what the first phase leaves of them is enough here
            words, smoke = words.replace("--within 1", "--within 60"), ""
        extra = smoke + (" --data mnist-small --threads 1" if kind in SMOKE else "")
        assert atent(*shlex.split(f"{words} {extra}")[1:]) == 0, command
    names: dict[str, torch.Tensor] = {}
    (opens,) = blocks("python", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"))
    exec(opens, names)  # what the commands trained
    assert 0 <= names["accuracy"] <= 1


def zoo_names(text: str) -> set[str]:
    """The pretrained networks that commands name."""
    return set(re.findall(r"zoo[: ](\w+-\w+)", text))


def test_make_try_ends_with_a_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front page's first command, on fewer images: nothing is fetched, and the report has attacked images."""
    assert blocks("sh")[0].splitlines()[0] == "make try"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = makefile.partition("\ntry: setup\n")[2].partition("\n\n")[0].splitlines()
    commands = [line.partition("$(BIN)/atent ")[2] for line in lines]
    monkeypatch.setenv("ATENT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    if (named := zoo_names(" ".join(commands))) - read_index().keys():
        toy_zoo(monkeypatch, tmp_path / "toys", *sorted(named))
    for command in commands:
        smoke = " --examples 60 --set steps=3 --threads 1" if command.startswith("attack") else ""
        assert atent(*shlex.split(command + smoke)) == 0, command
    (page,) = Path("runs").glob("zoo-*/report.html")
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")


def test_the_three_commands_for_own_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    network, use = blocks("python", page)
    Path("my_nets.py").write_text(network, encoding="utf-8")
    own_folder(Path("clothes"))
    own_folder(Path("tops"), classes=2)
    commands = blocks("sh", page)[0].splitlines()
    assert len(commands) == 3
    for command in commands:
        extra = "--set steps=2" if "attack" in command else "--set epochs=1 --set defense.steps=2"
        assert atent(*shlex.split(f"{command} {extra} --threads 1")[1:]) == 0, command
    assert (tmp_path / "runs" / "tops" / "best.safetensors").exists()
    names: dict[str, Any] = {}
    exec(use, names)
    assert set(names["names"]) <= set(names["target"].images.classes)
    assert not names["target"].network.training
    assert 0 < (names["x_adv"] - names["x"]).abs().max() <= 8 / 255 + 1e-6


def test_python_block_trains() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    x, y = torch.rand(30, 3, 2, 2), torch.arange(30) % 3
    names = {
        "model": model,
        "loader": [(x, y)] * 5,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "generator": torch.Generator().manual_seed(0),
    }
    before = torch.nn.functional.cross_entropy(model(x), y)
    (loop,) = blocks("python")
    exec(loop, names)
    assert torch.nn.functional.cross_entropy(model(x), y) < before


@pytest.mark.parametrize(
    ("block", "name", "field", "value"),
    [(0, "UniformNoise", "start", "corner"), (1, "Pairing", "weight", 0.25), (2, "Brightness", "step", 0.2)],
)
def test_the_docs_own_defenses_train(
    block: int, name: str, field: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file in the working folder, named with a colon, as docs/extend.md says."""
    found = blocks("python", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"))
    module = f"my_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(found[block], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = [f"defense.name={module}:{name}", f"defense.{field}={value}", "epochs=1", "validation=5900"]
    command = ["train", "demo", "--out", "run", "--threads", "1", *(f"--set={change}" for change in changes)]
    assert atent(*command, "--set=monitor_examples=9", "--set=monitor.steps=2") == 0
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["defense"][field] == value
    assert len(found) == 4  # the last one is a schedule, below


def test_the_docs_own_schedule_has_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, schedule = blocks("python", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"))
    (tmp_path / "my_rates.py").write_text(schedule, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    rates = make_rates({"name": "my_rates:Triangle", "peak": 0.5}, lr=0.1)
    assert [rates.rate(done, 3) for done in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0, 0.5, 1, 0.5, 0]
    assert rates.eps_share(0.25) == 0.5


def test_the_docs_tables_of_optimizers_and_schedules_are_recipes() -> None:
    tables = blocks("toml", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"))
    changes = {key: value for table in tables for key, value in tomllib.loads(table).items()}
    recipe = load_recipe("demo", changes)
    assert recipe.optimizer["betas"] == [0.9, 0.95]
    assert recipe.rates.rate(0.3, recipe.epochs) == pytest.approx(0.1 / 1e-3, rel=0.01)  # the peak, at pct_start


@pytest.mark.parametrize(("page", "least"), [("python", 5), ("from-others", 5)])
def test_the_docs_calls_in_python_run(page: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page's order, on a small network; of other libraries' calls, none."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x, y = torch.rand(24, 3, 4, 4), torch.arange(24) % 4
    data = torch.utils.data.TensorDataset(x, y)
    names: dict[str, Any] = {
        "torch": torch,
        "model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 4)),
        "x": x,
        "y": y,
        **dict.fromkeys(("loader", "train_loader", "test_loader"), torch.utils.data.DataLoader(data, batch_size=8)),
    }
    monkeypatch.setitem(SUITES, "strong", SUITES["quick"])  # the real one takes seconds
    found = blocks("python", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) >= least
    for block in found:
        exec(block, names)
    assert names["trained"].network.training is False


def test_set_up_and_test_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks("sh"):
        for target in re.findall(r"^make (\w+)$", block, flags=re.MULTILINE):
            assert re.search(rf"^{target}: setup$", makefile, flags=re.MULTILINE), target
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DEFENSES)
def test_methods_cost_and_come_from_where_the_table_says(name: str) -> None:
    found = re.search(
        rf"^\| \[`{name}`\]\(docs/{name}.md\) \|.*\| (.*) \| (\d+) \+ (\d+) \| (.*) ?\|$", README, re.MULTILINE
    )
    assert found, f"the table of methods has no line for {name}"
    norms, forward, backward, paper = found.groups()
    for norm in norms.split(", "):
        passes = passes_per_image(DEFENSES[name](), f"{norm}:0.1")
        assert (passes.forward, passes.backward) == (int(forward), int(backward))
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert all(address in page for address in re.findall(r"\((https:[^)]*)\)", paper))


def test_tables_and_pictures_are_those_that_the_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the pictures: the points that they carry as their description, which is written with them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tables, curve, minutes = map(importlib.import_module, ("fill_tables", "robustness_curve", "entropy_picture"))
    pages = {"README.md", "docs/results.md", "docs/atent.md", "docs/trades.md", "docs/entropy-sgd.md"}
    assert pages < tables.PAGES.keys()
    for page in tables.PAGES:
        assert tables.filled(page) == (ROOT / page).read_text(encoding="utf-8"), page
    for name, description in (("robustness", curve.description()), ("entropy", minutes.described())):
        picture = ElementTree.parse(ROOT / "docs" / f"{name}.svg")
        assert picture.findtext(".//{http://purl.org/dc/elements/1.1/}description") == description


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
