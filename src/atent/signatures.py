"""Types of fields and arguments as a person writes them, in `help` and in notebooks."""

import inspect
from inspect import isfunction
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from atent.limits import LARGEST, MOST


class OwnSignature(NamedTuple):
    """The signature of a class, but not of those that inherit from it: they may add fields."""

    cls: type
    signature: inspect.Signature

    def __get__(self, _: object, owner: type) -> inspect.Signature:
        if owner is not self.cls:
            raise AttributeError
        return self.signature


class _Words(str):
    __repr__ = str.__str__  # without quotes


def readable_signature(signature: inspect.Signature) -> inspect.Signature:
    """The signature with its types in words."""
    known = [one.replace(annotation=_Words(in_words(one.annotation))) for one in signature.parameters.values()]
    named = {one.name: one.replace(default=_Words(one.default.__name__)) for one in known if isfunction(one.default)}
    return inspect.Signature([named.get(one.name, one) for one in known])


def in_words(annotation: Any) -> str:
    """A type as a person writes it: `int (>= 1)`, `float (> 0) | None`, `'eval' | 'train'`."""
    kind, inside = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        limits = [(sign, getattr(one, key, None)) for one in inside[1].metadata for key, sign in signs.items()]
        told = [f"{sign} {end:g}" for sign, end in limits if end not in (None, MOST, LARGEST)]
        return f"{in_words(inside[0])} ({', '.join(told)})"
    if kind in (Union, UnionType, Literal):
        return " | ".join(repr(one) if kind is Literal else in_words(one) for one in inside)
    name = str(getattr(kind or annotation, "__name__", annotation))
    return {"NoneType": "None", "Module": "nn.Module"}.get(name, name)
