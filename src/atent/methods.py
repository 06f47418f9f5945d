"""A method is a frozen, checked dataclass whose fields are its hyper-parameters. Names of methods are looked up here.

A name with a colon, `package.module:Name`, is the user's own and is imported.
"""

import dataclasses
import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from atent.errors import UserError, reason_of, shown, unknown
from atent.limits import COPIES, LARGEST, MOST, PIXELS
from atent.signatures import OwnSignature, readable_signature
from atent.signatures import in_words as in_words

T = TypeVar("T")

Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Copies = Annotated[int, Field(ge=1, le=COPIES)]
Side = Annotated[int, Field(ge=1, le=PIXELS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Size = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Tolerance = Annotated[float, Field(ge=0, lt=1)]
Start = Literal["center", "near", "uniform", "unboxed", "corner", "gaussian"]
Direction = Literal["steepest", "raw"]
Projection = Literal["last", "every", "never"]
Mode = Literal["eval", "train"]
Pull = Scale | Literal["auto"]
Choice = Literal["robust", "clean"]
_BATCH = ("model", "x", "y", "threat", "generator")
_CALLED_WITH = {"defense": _BATCH, "attack": _BATCH, "optimizer": ("parameters",)}

if TYPE_CHECKING:
    from dataclasses import dataclass as _dataclass
    from typing import dataclass_transform

    @dataclass_transform(frozen_default=True)
    def method(cls: type[T]) -> type[T]: ...

else:
    from pydantic.dataclasses import dataclass as _dataclass

    def method(cls):
        """Make `cls` a frozen dataclass that checks its fields' types and ranges and refuses unknown ones."""
        made = _dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
        made.__signature__ = OwnSignature(made, readable_signature(inspect.signature(made)))
        return made


def readable(function: T) -> T:
    """Show the types of a public function as a person writes them, in `help` and in notebooks."""
    function.__signature__ = readable_signature(inspect.signature(function))  # type: ignore[attr-defined,arg-type]
    return function


def is_imported(name: object) -> bool:
    """Whether a name is `package.module:Name`: looking it up imports a module, which runs code."""
    return ":" in str(name)


def names_in(table: object) -> Iterator[object]:
    """The name of a method's table, then those of the tables inside it."""
    if isinstance(table, Mapping):
        yield table.get("name", "")
        table = tuple(table.values())
    for inside in table if isinstance(table, list | tuple) else ():
        yield from names_in(inside)


def imports(table: object) -> bool:
    """Whether making what a table names imports a module of the user: the table's own name, or one inside it."""
    return any(map(is_imported, names_in(table)))


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`, or the user's own object if the name has a colon."""
    if is_imported(name):
        return import_object(name, kind)  # type: ignore[no-any-return]
    if name not in table:
        raise unknown(kind, name, [*table, "package.module:Name"])
    return table[name]


def import_object(name: str, kind: str) -> Any:
    """Import `package.module:Name`."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a script's path has its own folder instead of the user's
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module is the user's: it may do anything
        raised = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        reason = f"{raised}{reason_of(error)}"
        raise UserError(f"cannot import {kind} {name!r}: {reason}; allowed: package.module:Name on the path") from error


def make(table: Mapping[str, T], settings: Mapping[str, Any], kind: str, where: str = "") -> Any:
    """Build a method from `{"name": ..., field: value, ...}`; the error for an unknown field lists the known ones.

    The object that a user's name leads to is called only if it is a class that fits methods of this kind.
    """
    if "name" not in settings:
        raise UserError(f"{kind} without a name; known: {', '.join(sorted(table))}{where and f' ({where})'}")
    fields = {key: value for key, value in settings.items() if key != "name"}
    name = str(settings["name"])
    build: Any = look_up(table, name, kind)
    if is_imported(name):
        _check_class(build, name, kind)
    known = field_names(build)
    for key in fields:
        if known and key not in known:
            raise unknown(f"{kind} field", key, known, where or name)
    try:
        return build(**fields)
    except ValidationError as error:
        raise UserError(explain(error, where or f"{kind} {name}")) from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not is_imported(name) and not isinstance(error, TypeError):
            raise
        raise UserError(f"{kind} {name} cannot be made of {shown(fields)}: {reason_of(error)}") from error


def _check_class(found: object, name: str, kind: str) -> None:
    """Refuse what is not a class, and a class whose objects cannot be called like methods of this kind."""
    arguments = _CALLED_WITH[kind]
    expected = f"expected a class with a method __call__(self, {', '.join(arguments)})"
    if not isinstance(found, type):
        raise UserError(f"{kind} {name!r} is not a class but of type {type(found).__name__}; {expected}")
    call = next((vars(base)["__call__"] for base in found.__mro__ if "__call__" in vars(base)), None)
    if call is None:
        raise UserError(f"{kind} {name!r} has no method __call__; {expected}")
    try:
        inspect.signature(call).bind(None, *arguments)
    except (TypeError, ValueError) as error:  # ValueError: built in, its arguments unknown
        raise UserError(f"the method __call__ of {kind} {name!r} does not fit ({error}); {expected}") from None


def written_out(settings: Mapping[str, Any], method: object) -> dict[str, Any]:
    """The table that a method was made of, with every default in it (of a user's own class, if it is a dataclass)."""
    if isinstance(known := getattr(method, "settings", None), Mapping):  # of another library
        return dict(known)
    return {**settings, **(dataclasses.asdict(method) if dataclasses.is_dataclass(method) else {})}  # type: ignore[arg-type]


def defaults(method: object) -> dict[str, Any]:
    """The default values of a method's fields, as in JSON; empty if it is no dataclass."""
    if not dataclasses.is_dataclass(method):
        return {}
    parameters = inspect.signature(type(method)).parameters.values()
    known = {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
    return dict(to_jsonable_python(known, fallback=repr))


def completed(found: Mapping[str, Any], ours: Mapping[str, Any], method: object) -> dict[str, Any]:
    """A method's table from a run; fields added to its class since then get their defaults, if it is that of `ours`."""
    if found.get("name") != ours["name"]:
        return dict(found)
    found = getattr(method, "filled", dict)(found)  # what fields that are there say about others
    added = {key: value for key, value in defaults(method).items() if key in ours}
    inside = getattr(method, "attacks", ())  # of a cascade
    if inside and len(found.get("attacks", ())) == len(inside):
        added_inside = map(completed, found["attacks"], ours["attacks"], inside)
        return {**added, **found, "attacks": list(added_inside)}
    return {**added, **found}


def chosen_by(defense: object) -> Choice:
    """Which held-out accuracy chooses the best epoch: the defense's `chosen_by`, by default "robust"."""
    choice: Choice = getattr(defense, "chosen_by", "robust")
    if choice not in get_args(Choice):
        raise unknown("accuracy chosen_by", choice, get_args(Choice), type(defense).__name__)
    return choice


def is_single_step(method: object) -> bool:
    """Whether a defense or an attack makes one gradient step: its `single_step`, by default `steps == 1`."""
    return bool(getattr(method, "single_step", getattr(method, "steps", None) == 1))


def is_gradient_free(attack: object) -> bool:
    """Whether an attack uses no gradients: its `gradient_free`, by default False."""
    return bool(getattr(attack, "gradient_free", False))


def field_names(build: object) -> list[str]:
    """The fields of a dataclass or pydantic model; empty for anything else."""
    return list(getattr(build, "__dataclass_fields__", None) or getattr(build, "model_fields", {}))


def explain(error: ValidationError, where: str) -> str:
    """Pydantic's first error as one line: the field, the value given, what is allowed, the place."""
    first = error.errors(include_url=False, include_context=False)[0]
    depth = 3 if any(isinstance(part, int) for part in first["loc"]) else 2  # a list's item has fields of its own
    parts = [part for part in first["loc"] if part not in ("ours", "users")][:depth]  # tags of a union
    field = ".".join(str(part) for part in parts if not str(part).startswith(("constrained", "literal")))  # a branch
    if first["type"] == "missing":
        return f"{where}: {field} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if isinstance(first["input"], dict) or not field:  # the error is about a whole table
        return f"{where}: {message}"
    return f"{where}: {field} = {shown(first['input'])}: {message[:1].lower()}{message[1:]}"


def parse_setting(text: str) -> tuple[str, Any]:
    """`defense.steps=5` as a key and a TOML value; a value that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {shown(text)}; allowed: key=value such as epochs=2 or defense.steps=5")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists of thousands of levels
        raise UserError(f"--set {shown(text)}: too long or too deep; allowed: a value of the recipe's kind") from None
