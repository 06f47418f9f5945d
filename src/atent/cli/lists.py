"""`atent list`."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from atent.errors import UserError, unknown

if TYPE_CHECKING:
    from atent.defenses import Defense


def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="recipes, models, defenses, optimizers, attacks or data. Default: all.")
    ] = None,
) -> None:
    """List recipes, models, defenses, optimizers, attacks and data sets, a line each.

    Of a defense: the images it sends forward and back through the network for each one of a batch (at its default
    settings), its norms and where it comes from.
    """
    from atent.attacks import ATTACKS, OUTSIDE
    from atent.data import SOURCES
    from atent.defenses import DEFENSES
    from atent.models import MODELS
    from atent.optim import OPTIMIZERS
    from atent.recipe import RECIPES, recipe_names

    def headline(thing: object) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0] if isinstance(thing, type) and thing.__doc__ else ""

    kinds = {
        "recipes": {
            name: (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            for name in recipe_names()
        },
        "models": {name: headline(build) for name, build in MODELS.items()},
        "defenses": {name: _defense_line(build) for name, build in DEFENSES.items()},
        "optimizers": {name: headline(build) for name, build in OPTIMIZERS.items()},
        "attacks": {name: headline(build) for name, build in {**ATTACKS, **OUTSIDE}.items()},
        "data": {name: f"{len(source.classes)} classes" for name, source in SOURCES.items()},
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    for title in [kind] if kind else kinds:
        print(f"{title}:")
        for name, words in kinds[title].items():
            print(f"  {name:24}{words}".rstrip())


def _defense_line(build: "Callable[..., Defense]") -> str:
    """Passes counted, norms tried, reference found in the docstring."""
    from atent.defenses.cost import passes_per_image
    from atent.threat import NORMS, Threat

    found = {}
    for norm in NORMS:
        with suppress(UserError):  # it is not defined for this norm
            found[norm] = passes_per_image(build(), Threat.parse(f"{norm}:0.1"))
    passes = next(iter(found.values()))
    cost = f"{passes.forward} forward, {passes.backward} back"
    reference = re.search(r"\w+ et al\. \d{4}, https://[^\s;,]+[^\s;,.]", build.__doc__ or "")
    return f"{cost:21}{', '.join(found):10}{reference[0] if reference else ''}".rstrip()
