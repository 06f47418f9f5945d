"""`atent show`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.errors import UserError, unknown


def show(
    targets: Annotated[list[str], typer.Argument(help="Run folders, or one recipe's name or path.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")] = False,
    classes: Annotated[bool, typer.Option("--classes", help="Also print the accuracies of each class.")] = False,
) -> None:
    """Show the results of runs (accuracy under attack, certified accuracy), or a recipe with all its defaults."""
    from atent.evaluation.estimate import estimates
    from atent.recipe import RENAMED, load_recipe, recipe_names
    from atent.report.brackets import bracket_markdown, print_bracket
    from atent.report.tables import certified_markdown, finished, result_lines
    from atent.report.tables import markdown as to_markdown
    from atent.report.terminal import print_certified, print_classes, print_results
    from atent.storage.brackets import brackets
    from atent.storage.certificates import certified
    from atent.storage.row_file import leave_out

    if targets[0] in RENAMED:
        raise UserError(f"{targets[0]} is now called {RENAMED[targets[0]]}")
    is_recipe = targets[0] in recipe_names() or targets[0].endswith(".toml")
    if len(targets) == 1 and is_recipe and not Path(targets[0]).is_dir():
        print(load_recipe(targets[0], build=False).model_dump_json(indent=2))
        return
    folders = [Path(target) for target in targets]
    for folder in folders:
        if not folder.is_dir() and str(folder) in recipe_names():
            raise UserError(f"{folder} is a recipe among {len(targets)} targets; allowed: run folders, or one recipe")
        if not folder.is_dir():
            raise unknown("run folder or recipe", folder, recipe_names())
    left_out: list[str] = []
    found = [met for folder in folders for met in finished(folder, left_out.append)]
    proven = [one for folder in folders for one in certified(folder, left_out.append)]
    estimated = [one for folder in folders for one in estimates(folder, left_out.append)]
    between = [one for folder in folders for one in brackets(folder, left_out.append)]
    if not found and not proven:
        raise UserError("; ".join(left_out) or f"no finished attack in {', '.join(targets)}; run atent attack first")
    for problem in left_out:
        leave_out(problem)
    lines = result_lines(found)
    if lines and markdown:
        print(to_markdown(lines))
    elif lines:
        print_results(lines)
    for whole in estimated:
        print(f"{whole.run} ({whole.weights[:6]}): {whole}")
    if proven and markdown:
        print(certified_markdown(proven))
    else:
        for one in proven:
            print_certified(one)
    if between and markdown:
        print(f"\n{bracket_markdown(between)}")
    else:
        for both in between:
            print_bracket(both)
    if classes:
        print_classes(found)
