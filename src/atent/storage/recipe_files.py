"""Recipe files: ours by name, a user's by path. `base` inherits from another recipe; overrides change single keys."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atent.errors import UserError, unknown
from atent.methods import imports
from atent.storage.files import read_json

Filled = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
RECIPES = Path(__file__).parents[1] / "recipes"
METHODS = ("defense", "optimizer", "monitor")  # tables whose fields belong to the method of their `name`
RENAMED = {"mnist-linf-atent-fast": "mnist-linf-pgd-quick", "mnist-l2-atent-fast": "mnist-l2-atent-quick"}


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_text(name: str) -> str:
    """The TOML file of a recipe, with its comments."""
    try:
        return _path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {name}: {error}") from None


def read_recipe_file(name: str, overrides: Mapping[str, Any] | None, filled: Filled) -> dict[str, Any]:
    """The table of a recipe, merged with that of its `base`; `overrides` has dotted keys: `{"defense.steps": 5}`.

    `filled(defense, fields)` adds to the fields that replace those of the same defense what they exclude.
    """
    table = _inherited(name, (), filled)
    # Names first: a new method name drops the fields of the old method, but not those given with it.
    settings = {_method_name(key, value): value for key, value in (overrides or {}).items()}
    for key, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".name")):
        _replace(table, key, value)
    given = {key.removeprefix("defense."): value for key, value in settings.items() if key.startswith("defense.")}
    if given and isinstance(defense := table.get("defense"), dict):
        defense.update(filled(str(defense.get("name")), given))
    return table


def _path(name: str, home: Path = Path()) -> Path:
    """The file of a recipe; a path is relative to `home`."""
    if name in RENAMED:
        raise UserError(f"{name} is now called {RENAMED[name]}")
    if Path(name).suffix in (".toml", ".json"):  # JSON: the recipe.json of a run
        return home / name
    path = RECIPES / f"{name}.toml"
    if not path.is_file():
        raise unknown("recipe", name, [*recipe_names(), "a path ending in .toml"])
    return path


def _inherited(name: str, heirs: tuple[Path, ...], filled: Filled) -> dict[str, Any]:
    """The table of a file and of its bases. `heirs` are the files that inherit from it; a path is relative to them."""
    path = _path(name, heirs[-1].parent if heirs else Path())
    if path.resolve() in heirs:
        raise UserError(f"recipe {heirs[0]}: base = {name!r} leads back to {path}; allowed: a chain that ends")
    try:
        table = read_json(path) if path.suffix == ".json" else tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise error if isinstance(error, UserError) else UserError(f"recipe {name}: {error}") from None
    for key in (*METHODS, "schedule"):
        if isinstance(table.get(key), str):  # as with --set
            table[key] = {"name": table[key]}
    base = table.pop("base", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise UserError(f"recipe {name}: base = {base!r}; allowed: the name of a recipe or the path of a .toml file")
    return _merged(_inherited(base, (*heirs, path.resolve()), filled), table, filled)


def _merged(base: dict[str, Any], table: Mapping[str, Any], filled: Filled) -> dict[str, Any]:
    """The base with the keys of `table`. A table keeps the other keys of the base's, unless it names another method."""
    merged = dict(base)
    for key, value in table.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict) and not _another(key, before, value):
            added = filled(str(before.get("name")), value) if key == "defense" else value
            value = {**before, **added}
        merged[key] = value
    return merged


def _another(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a table names another method than the one before, whose fields then mean nothing.

    Our own schedules share their fields.
    """
    named = key in METHODS or imports([before, after])
    return named and after.get("name", before.get("name")) != before.get("name")


def _method_name(key: str, value: Any) -> str:
    """`defense=trades` means `defense.name=trades`."""
    return f"{key}.name" if key in (*METHODS, "schedule") and isinstance(value, str) else key


def _replace(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a new method name drops the fields of the old method."""
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: {parent} is not a table")
    if last == "name" and parents and _another(parents[-1], table, {"name": value}):
        table.clear()
    table[last] = value
