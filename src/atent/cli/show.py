"""`atent show`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.errors import UserError, unknown


def show(
    targets: Annotated[
        list[str],
        typer.Argument(help="Run folders or zoo:NAME; or one recipe or method by its name, a recipe also by its path."),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, one record each.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the results as CSV, one line each.")] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print a recipe as the TOML file with its comments.")] = False,
    classes: Annotated[bool, typer.Option("--classes", help="Also print the accuracies of each class.")] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete results: TARGETS are their files, RUN/attack/NAME.jsonl.")
    ] = False,
) -> None:
    """Show the results of runs (accuracy under attack, certified accuracy), a recipe with all its defaults, or a
    method with its fields.

    For example: `atent show runs/demo`, `atent show own-images --toml`, `atent show pgd`
    """
    from atent.cli.explain import explain, methods
    from atent.recipe import load_recipe
    from atent.storage.recipe_files import RENAMED, recipe_names, recipe_text
    from atent.zoo.index import is_zoo, rows_folder

    given = {"--markdown": markdown, "--json": as_json, "--csv": as_csv, "--toml": toml, "--remove": remove}
    chosen = [option for option, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}; allowed: one of them")
    if classes and (as_json or as_csv):
        raise UserError(f"--classes with {chosen[0]}, whose records have no classes; allowed: with tables")
    if remove:
        _remove([Path(target) for target in targets])
        return
    targets = [str(rows_folder(target)) if is_zoo(target) else target for target in targets]
    name = targets[0]
    if name in RENAMED:
        raise UserError(f"{name} is now called {RENAMED[name]}")
    single = len(targets) == 1 and not Path(name).is_dir()
    if single and (name in recipe_names() or name.endswith(".toml")):
        if as_csv or markdown:
            raise UserError(f"{chosen[0]} with the recipe {name}; allowed: --toml, or --json as without an option")
        print(recipe_text(name) if toml else load_recipe(name, build=False).model_dump_json(indent=2))
        return
    if toml:
        raise UserError(
            f"--toml with {', '.join(targets)}; allowed: one recipe, such as demo or a path of a .toml file"
        )
    if single and name in methods():
        if chosen:
            raise UserError(f"{chosen[0]} with the method {name}; allowed: with run folders")
        explain(name)
        return
    folders = [Path(target) for target in targets]
    for folder in folders:
        if not folder.is_dir() and str(folder) in (*recipe_names(), *methods()):
            raise UserError(f"{folder} is not a run folder; allowed: run folders, or one recipe or method alone")
        if not folder.is_dir() and len(folder.parts) > 1:
            raise UserError(f"{folder}: there is no such folder; allowed: run folders, a recipe or a method")
        if not folder.is_dir():
            raise unknown("run folder, recipe or method", folder, recipe_names(), also=methods())
    _show_runs(folders, chosen[0] if chosen else "", classes=classes)


def _show_runs(folders: list[Path], form: str, *, classes: bool) -> None:
    from atent.evaluation.estimate import estimates
    from atent.progress import say
    from atent.report.brackets import bracket_markdown, print_bracket
    from atent.report.records import records, to_csv, to_json
    from atent.report.tables import certified_markdown, finished, result_lines
    from atent.report.tables import markdown as to_markdown
    from atent.report.terminal import print_certified, print_classes, print_results, tell
    from atent.storage.brackets import brackets
    from atent.storage.certificates import certified
    from atent.storage.row_file import leave_out

    left_out: list[str] = []
    report = left_out.append
    read = {
        one: (finished(one, report), estimates(one, report), certified(one, report), brackets(one, report))
        for one in folders
    }
    found = [one for some in read.values() for one in some[0]]
    estimated = [one for some in read.values() for one in some[1]]
    proven = [one for some in read.values() for one in some[2]]
    between = [one for some in read.values() for one in some[3]]
    empty = [_empty(folder) for folder, some in read.items() if not any(some)]
    if len(empty) == len(read):
        raise UserError("; ".join(left_out or empty))
    for problem in left_out:
        leave_out(problem)
    for line in empty:
        say(line)
    if form in ("--json", "--csv"):
        every = records(found, estimated, proven, between)
        print(to_json(every) if form == "--json" else to_csv(every))
        return
    lines = result_lines(found)
    whole = [(f"{one.run} ({one.weights[:6]}), {one.data} test images:", str(one)) for one in estimated]
    if form == "--markdown":
        parts = [to_markdown(lines)] if lines else []
        parts += map(" ".join, whole)
        parts += [certified_markdown(proven)] if proven else []
        parts += [bracket_markdown(between)] if between else []
        print("\n\n".join(parts))
    else:
        print_results(lines)
        for title, line in whole:
            tell(title)
            tell(line)
        for one in proven:
            print_certified(one)
        for both in between:
            print_bracket(both)
    if classes:
        print_classes(found)


def _empty(folder: Path) -> str:
    from atent.storage.run import Run

    if Run(folder).best.exists():
        return f"{folder} is trained, but has no finished attack or certificate; next: atent attack {folder}"
    return f"no finished attack in {folder}, and no trained network; expected a run folder of atent train or attack"


def _remove(files: list[Path]) -> None:
    from atent.report.terminal import tell
    from atent.storage.removal import check_result, remove_result

    for file in files:
        check_result(file)
    for file in files:
        tell(f"removed {', '.join(map(str, remove_result(file)))}")
