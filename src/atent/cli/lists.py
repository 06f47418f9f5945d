"""`atent list`."""

from typing import Annotated

import typer

from atent.errors import unknown


def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="recipes, models, defenses, attacks or data. Default: all.")
    ] = None,
) -> None:
    """List recipes, models, defenses, attacks and data sets, a line each."""
    from atent.attacks import ATTACKS, OUTSIDE
    from atent.data import SOURCES
    from atent.defenses import DEFENSES
    from atent.models import MODELS
    from atent.recipe import RECIPES, recipe_names

    def headline(thing: object) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0] if isinstance(thing, type) and thing.__doc__ else ""

    kinds = {
        "recipes": {
            name: (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            for name in recipe_names()
        },
        "models": {name: headline(build) for name, build in MODELS.items()},
        "defenses": {name: headline(build) for name, build in DEFENSES.items()},
        "attacks": {name: headline(build) for name, build in {**ATTACKS, **OUTSIDE}.items()},
        "data": {name: f"{len(source.classes)} classes" for name, source in SOURCES.items()},
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    for title in [kind] if kind else kinds:
        print(f"{title}:")
        for name, words in kinds[title].items():
            print(f"  {name:24}{words}".rstrip())
