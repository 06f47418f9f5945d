"""The command line of a script that measures rows, one after the other, and makes a table of them."""

import argparse
from collections.abc import Callable

from atent.machine import prepare


def run(
    doc: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    measure: Callable[[argparse.Namespace], None],
    table: Callable[[], None],
) -> None:
    """`measure`, with the arguments added, or `table`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    measuring = commands.add_parser("measure")
    measuring.add_argument("--threads", type=int, default=1)
    add_arguments(measuring)
    given = parser.parse_args()
    if given.command == "table":
        table()
    else:
        prepare(given.threads)
        measure(given)
