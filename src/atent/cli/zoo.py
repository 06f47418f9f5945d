"""`atent zoo`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from atent.zoo.index import Entry

COLUMNS = ["name", "data", "threat", "network", "MB", "clean %", "robust % [95 %]", "by"]
SHORT = ["name", "threat", "clean %", "robust % [95 %]", "by"]  # of a narrow terminal


def zoo(
    name: Annotated[str | None, typer.Argument(help="A pretrained network: print its model card.")] = None,
) -> None:
    """List the pretrained networks that come with the package, or print the model card of one.

    `zoo:NAME` names a network wherever a run or weights can be named. The accuracies are those of the stored weights,
    made from rows. For example: `atent zoo`, `atent zoo mnist-linf`, `atent attack zoo:mnist-linf`,
    `atent train demo --weights zoo:mnist-linf`
    """
    from atent.report.terminal import fits, print_table, tell
    from atent.zoo.index import card_of, read_index

    if name is not None:
        print(without_header(card_of(name)).strip())
        return
    known = read_index()
    rows = [dict(zip(COLUMNS, [one, *cells(entry)], strict=True)) for one, entry in known.items()]
    for columns in (COLUMNS, SHORT):
        table = [[row[column] for column in columns] for row in rows]
        if columns is SHORT or fits(columns, table):
            break
    print_table("Pretrained networks", columns, table)
    if any(row["by"].startswith("certified") for row in rows):
        tell("certified: accuracy that no attack within the threat can lower, with the noise of its recipe")
    first = next(iter(known), "NAME")
    tell(f"Next: atent attack zoo:{first}; its card: atent zoo {first}")


def cells(entry: "Entry") -> list[str]:
    """What the table says of a network, after its name."""
    from atent.zoo.index import interval

    best, clean = entry.headline, entry.clean
    size = f"{entry.bytes / 1e6:.2f}"
    known = ["" if clean is None else f"{100 * clean:.2f}", str(interval(best)) if best else "", by_what(entry)]
    return [entry.data, entry.threat, entry.model, size, *known]


def by_what(entry: "Entry") -> str:
    """The attack of the headline, or `certified`, and at which radius if that is not the threat's."""
    from atent.threat import Threat

    best = entry.headline
    if best is None or best.kind != "certificate":
        return best.method if best else ""
    return "certified" if Threat.parse(best.threat) == Threat.parse(entry.threat) else f"certified at {best.threat}"


def without_header(card: str) -> str:
    """A card without its YAML header."""
    return card.split("---\n", 2)[-1] if card.startswith("---\n") else card
