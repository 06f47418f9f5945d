"""`atent ensemble`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.cli.options import DataDir


def ensemble(
    runs: Annotated[list[str], typer.Argument(help="Run folders, checkpoints of atent, or zoo:NAME; at least two.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="A new folder, for the run of the ensemble.")],
    data_dir: DataDir = None,
) -> None:
    """Make one network of several trained ones: it averages their log-probabilities.

    The recipes of the runs differ in their seeds alone. The result is a run: attack it, certify it, compare it, export
    it. A pass costs as much as those of all members. For example:
    `atent ensemble runs/seed-0 runs/seed-1 --to runs/both`, then `atent attack runs/both --suite strong --within 1`
    """
    from atent.report.terminal import tell
    from atent.training.ensemble import ensemble as join

    run = join(runs, to, data_dir=data_dir)
    tell(f"{run.folder}: {len(runs)} networks as one")
    tell(f"Next: atent attack {run.folder} --suite strong --within 1")
