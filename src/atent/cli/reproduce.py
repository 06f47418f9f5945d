"""`atent reproduce`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atent.cli.options import DataDir, Device
from atent.errors import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atent.reproduce.engine import Place
    from atent.reproduce.work import Job


def reproduce(
    name: Annotated[str, typer.Argument(help="table1 ... table6, figure1 ... figure3, finetune, or all.")],
    budget: Annotated[
        str,
        typer.Option(help="smoke: minutes, without a download. cpu: two cores, hours. full: the paper's, GPU-days."),
    ] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder for networks, rows, tables and figures.")] = Path("runs/reproduce"),
    data_dir: DataDir = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run folder, or a folder of them: used instead of trainings with the same recipes, and for their "
            "rows. Repeatable."
        ),
    ] = None,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="Networks at a time, one thread each.", min=1, max=256)] = 2,
    status: Annotated[bool, typer.Option("--status", help="Print what is there and what the rest will take.")] = False,
) -> None:
    """Reproduce a table or a figure of the ATENT paper: train what is missing, evaluate it, print our numbers.

    Run the same command again to resume: nothing that is finished is repeated. Tables are printed as Markdown and
    LaTeX and written to OUT/BUDGET, with the paper's numbers and where these do not stand. For example:
    `atent reproduce table2 --budget cpu --status`
    """
    from atent.machine import pick_device
    from atent.parallel.team import current_team
    from atent.reproduce.appendix import FIGURES, NAMES, TABLES
    from atent.reproduce.engine import Place, jobs, run
    from atent.reproduce.figures import draw_figure
    from atent.reproduce.plan import BUDGETS
    from atent.storage.files import remove_orphans

    if current_team().size > 1:
        raise UserError("atent reproduce under torchrun; it starts its own processes, --processes N")
    if name not in (*NAMES, "all"):
        raise unknown("table or figure", name, [*NAMES, "all"])
    if budget not in BUDGETS:
        raise UserError(f"--budget {budget}; allowed: {', '.join(BUDGETS)}")
    finished = tuple(run for folder in reuse or [] for run in _runs_in(folder))
    names = NAMES if name == "all" else (name,)
    pick_device(device)  # refuses one that is not there before any work
    place = Place(out / budget, budget, data_dir, finished, device)
    tables = [table for key in names for table in TABLES.get(key, ())]
    figures = [FIGURES[key] for key in names if key in FIGURES]
    rows = [row for table in tables for row in table.rows_at(place.budget)]
    rows += [row for figure in figures for row in figure.rows]
    todo = jobs(place, rows, drawn=[row.network for figure in figures if figure.weights for row in figure.rows])
    if status:
        _print_status(todo, place, processes)
        return
    remove_orphans(place.home)
    failed = run(todo, processes, lambda line: print(line, file=sys.stderr, flush=True))
    _write([key for key in names if key in TABLES], place)
    for key in names:
        if key in FIGURES and not any(row.network in failed for row in FIGURES[key].rows):
            print(f"{FIGURES[key].title}: {draw_figure(key, place)}.svg, .png")
    if failed:
        reasons = {why: [name for name in failed if failed[name] == why] for why in failed.values()}
        raise UserError("; ".join(f"{why} ({', '.join(networks)})" for why, networks in reasons.items()))


def _runs_in(folder: Path) -> list[Path]:
    """The run in this folder, or the runs in the folders inside it."""
    found = [file.parent for where in ("recipe.json", "*/recipe.json") for file in sorted(folder.glob(where))]
    if not found:
        raise UserError(f"--reuse {folder}: no recipe.json there or one folder below; allowed: folders of atent train")
    return found


def _print_status(todo: "Iterable[Job]", place: "Place", processes: int) -> None:
    from atent.report.terminal import print_table
    from atent.reproduce.costs import words
    from atent.reproduce.status import left_of, total_words

    found = [left_of(job, place) for job in todo]
    columns = ["network", "epochs done", "measures left", "million passes", "time"]
    lines = [[one.network, one.epochs, str(one.measures), f"{one.passes:,.2f}", words(one.seconds)] for one in found]
    if lines:
        print_table(f"{place.home}: missing", columns, lines)
    print(total_words(found, place, processes))


def _write(names: "Iterable[str]", place: "Place") -> None:
    """Print the tables, as Markdown and as LaTeX, and write them to files."""
    from atent.reproduce.appendix import TABLES
    from atent.reproduce.document import latex, markdown
    from atent.storage.files import write_atomically

    place.home.mkdir(parents=True, exist_ok=True)
    for name in names:
        for text, end in ((markdown(TABLES[name], place), "md"), (latex(TABLES[name], place), "tex")):
            print(text)
            write_atomically(place.home / f"{name}.{end}", text.encode())
