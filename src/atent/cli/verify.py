"""`atent verify`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.cli.options import DataDir, Device, ModelName, Threads
from atent.errors import UserError


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder with rows, or zoo:NAME.")],
    data_dir: DataDir = None,
    model: ModelName = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import and run the package.module:function that the run names.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Check again what the rows of a run claim, without attacking.

    Checked are: the checksums of the rows, that their fields agree with each other, the hash of the weights, the
    labels, the predictions for all images and, of an attack with --save-images, that every point lies inside the
    threat and is predicted as its row states. Then the tables are made again. Each fault is one line, and so is what
    could not be checked. Exit code 0: everything that was checked holds; 2: something does not. For example:
    `atent verify runs/demo`
    """
    from atent.machine import pick_device, prepare
    from atent.report.tables import finished, result_lines
    from atent.report.terminal import print_results, tell
    from atent.verification.verify import sentences
    from atent.verification.verify import verify as verified
    from atent.zoo.index import rows_folder

    run = rows_folder(run)
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder; allowed: a run folder")
    prepare(threads)
    found = []
    for one in verified(run, model=model, data_dir=data_dir, device=pick_device(device), trust=trust):
        found.append(one)
        if one.passed:
            tell(f"holds: {one.path}: {', '.join(one.passed)}")
    for line in sentences(found, "unchecked"):
        tell(f"not checked: {line}")
    faults = sentences(found, "faults")
    for line in faults:
        tell(f"does not hold: {line}")
    bad = {one.path for one in found if one.faults}
    intact = [group for group in finished(run, lambda _: None) if not bad & set(group.files)]
    print_results(result_lines(intact))
    if faults:
        files = f"{len(bad)} files" if len(bad) > 1 else "1 file"
        count = f"{len(faults)} faults in {files}" if len(faults) > 1 else "1 fault"
        raise UserError(f"{run} does not verify: {count}")
