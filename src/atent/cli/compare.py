"""`atent compare`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.errors import UserError

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders with rows alone, or zoo:NAME.")
]
Against = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="The run to compare the others with. Default: the first.", show_default=False),
]


def compare(
    runs: Runs,
    against: Against = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print one table in Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print one table in LaTeX.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print one line for each difference, with all digits.")] = False,
) -> None:
    """Compare runs image by image: the difference of their accuracies, its interval, and McNemar's exact p.

    Two networks are compared in every attack that both have at the same threat, on the images that both were attacked
    on. Settings of the attack in which the two differ (seed, batch, steps) are named below the table. The interval of
    a difference is mostly narrower than those of the two accuracies, because the images are the same. For example:
    `atent compare runs/demo runs/demo-plain`
    """
    from atent.report.compare import compare as compared
    from atent.report.differences import comparison_csv, comparison_latex, comparison_markdown, print_comparison
    from atent.zoo.index import rows_folder

    runs, against = [rows_folder(run) for run in runs], against and rows_folder(against)
    given = {"--markdown": markdown, "--latex": latex, "--csv": as_csv}
    chosen = [option for option, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}; allowed: one of them")
    different = {folder.resolve() for folder in [*runs, *([against] if against else [])]}
    if len(different) < 2:
        raise UserError(f"{runs[0]} alone; allowed: two run folders or more, such as runs/demo runs/demo-plain")
    found = compared(runs, against)
    forms = {"--markdown": comparison_markdown, "--latex": comparison_latex, "--csv": comparison_csv}
    if chosen:
        print(forms[chosen[0]](found))
    else:
        print_comparison(found)
