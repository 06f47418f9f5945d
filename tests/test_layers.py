"""A module imports only those before it in the reading order of docs/design.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "atent"
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}


def reading_order() -> list[str]:
    """The modules in order; a package's `__init__`, which gathers its names, follows the package's last line."""
    (text,) = re.findall(r"```layers\n(.*?)```", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.DOTALL)
    lines, order = text.splitlines(), list[str]()
    for number, line in enumerate(lines):
        folder, _, modules = line.rpartition("/")
        packages = (
            [".".join(folder.split("/")[:depth]) for depth in range(folder.count("/") + 1, 0, -1)] if folder else []
        )
        order += [f"{packages[0]}.{module}" if folder else module for module in modules.split()]
        later = " ".join(lines[number + 1 :]).replace("/", ".").split()
        order += [f"{name}.__init__" for name in packages if not any(word.startswith(f"{name}.") for word in later)]
    return [*order, "__init__", "__main__"]


def imports(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever it does; for type checkers alone does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(line) for node in typing for line in node.body}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and str(node.module).partition(".")[0] == "atent"
            and id(node) not in skipped
        ):
            home = str(node.module).removeprefix("atent").lstrip(".")
            for name in node.names:
                inside = f"{home}.{name.name}".lstrip(".")
                module = inside if inside in MODULES or f"{inside}.__init__" in MODULES else home
                yield module if module in MODULES else f"{module}.__init__".lstrip(".")


def test_every_module_has_its_place() -> None:
    assert sorted(reading_order()) == sorted(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_earlier_ones(module: str) -> None:
    order = reading_order()
    before = {*order[: order.index(module)], "__init__"}  # atent.__version__ is for all
    assert set(imports(MODULES[module])) <= before
