"""`atent report`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.cli.compare import Runs


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Write a report of one run, or of several side by side, as one HTML file that opens in any browser.

    One run: its training, accuracies with intervals, accuracy against eps, certificates, classes, attacked images
    (if they were saved with --save-images), warnings, cost and the commands that repeat it. Several runs: their
    settings and accuracies next to each other, and paired differences from the first. The file needs no network and
    no other file. For example: `atent report runs/demo`, `atent report runs/* --out all.html`
    """
    from atent.page.write import write_report
    from atent.report.terminal import tell
    from atent.zoo.index import rows_folder

    path = write_report([rows_folder(run) for run in runs], out)
    tell(f"report: {path} ({path.stat().st_size / 1e6:.2f} MB)")
