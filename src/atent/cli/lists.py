"""`atent list`."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from atent.errors import UserError, unknown

if TYPE_CHECKING:
    from atent.defenses import Defense

HEADINGS = {"defenses": " (passes per image at default settings, norms, reference)"}


def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="recipes, models, defenses, optimizers, attacks or data. Default: all.")
    ] = None,
) -> None:
    """List recipes, models, defenses, optimizers, attacks and data sets, one per line.

    The line of a defense has its forward and backward passes per image (at default settings), its norms and its
    reference.
    """
    from atent.attacks import ATTACKS, OUTSIDE, Cascade
    from atent.data.published import SOURCES
    from atent.defenses import DEFENSES
    from atent.models import MODELS
    from atent.optim.optimizers import OPTIMIZERS
    from atent.report.terminal import tell
    from atent.storage.recipe_files import RECIPES, recipe_names

    def headline(thing: object) -> str:
        thing = thing.func if isinstance(thing, partial) else thing
        return (thing.__doc__ or "").strip().splitlines()[0] if isinstance(thing, type) and thing.__doc__ else ""

    def header(name: str) -> str:
        return (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")

    kinds: dict[str, Callable[[], dict[str, str]]] = {
        "recipes": lambda: {name: header(name) for name in recipe_names()},
        "models": lambda: {name: headline(build) for name, build in MODELS.items()},
        "defenses": lambda: {name: _defense_line(build) for name, build in DEFENSES.items()},
        "optimizers": lambda: {name: headline(build) for name, build in OPTIMIZERS.items()},
        "attacks": lambda: {
            name: headline(build) for name, build in {**ATTACKS, **OUTSIDE, "cascade": Cascade}.items()
        },
        "data": lambda: {name: f"{len(source.classes)} classes" for name, source in SOURCES.items()},
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    for title in [kind] if kind else kinds:
        tell(f"{title}{HEADINGS.get(title, '')}:")
        lines = kinds[title]()
        width = max(map(len, lines)) + 2
        for name, words in lines.items():
            tell(f"  {name:{width}}{words}".rstrip(), indent=width if width < 20 else 4)


def _defense_line(build: "Callable[..., Defense]") -> str:
    """The passes (counted), the norms (tried) and the reference (from the docstring) of a defense."""
    from atent.defenses.cost import passes_per_image
    from atent.threat import NORMS, Threat

    found = {}
    for norm in NORMS:
        with suppress(UserError):  # the defense does not support this norm
            found[norm] = passes_per_image(build(), Threat.parse(f"{norm}:0.1"))
    passes = next(iter(found.values()))
    cost = f"{passes.forward} forward, {passes.backward} back"
    reference = re.search(r"\w+ et al\. \d{4}, https://[^\s;,]+[^\s;,.]", build.__doc__ or "")
    return f"{cost:21}{', '.join(found):10}{reference[0] if reference else ''}".rstrip()
