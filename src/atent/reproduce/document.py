"""A table as Markdown and as LaTeX: our number with its interval, the paper's number, and the notes."""

import textwrap
from collections.abc import Sequence

from atent.reproduce.engine import Place
from atent.reproduce.plan import Row, Table
from atent.storage.rows import rate_of
from atent.storage.run import Run

MISSING = "not measured"
SIZES = {
    "smoke": "Size `smoke`: it shows that every step works. The numbers have no meaning.",
    "cpu": "Size `cpu`: two cores, hours. Trainings are shorter than the paper's, and CIFAR-10 networks smaller.",
    "full": "Size `full`: the paper's settings.",
}
Cells = list[list[str]]


def cells_of(table: Table, place: Place) -> Cells:
    """The rows of the table as text: the label, then for each column our number and the paper's."""
    lines = []
    for row in table.rows_at(place.budget):
        line = [row.label]
        for column in table.columns:
            measure = row.cells.get(column)
            found = place.number(row, measure) if measure else None
            ours = "" if measure is None else MISSING if found is None else f"{found} ({found.counted})"
            line += [ours, f"{row.paper[column]:.2f}" if column in row.paper else ""]
        lines.append(line)
    return lines


def markdown(tables: Sequence[Table], place: Place) -> str:
    """All parts of a table, with intervals (95 %), numbers of images, and notes."""
    parts = [_filled(f"{SIZES[place.budget]} Ours: percent [95 % interval] (images).")]
    for table in tables:
        head = ["training", *(name for column in table.columns for name in (f"{column}: ours", "paper"))]
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *cells_of(table, place)]
        parts.append(f"**{table.title}**\n")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts += [curve for row in table.rows_at(place.budget) if (curve := _curve(row, place))]
        if table.notes:
            parts.append("\n".join(_filled(note, "- ") for note in table.notes))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _filled(text: str, bullet: str = "") -> str:
    """The text in lines of at most 120 characters."""
    first, rest = bullet, " " * len(bullet)
    return textwrap.fill(
        text, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _curve(row: Row, place: Place) -> str:
    """Our accuracies after each epoch next to the authors'."""
    if not row.curve:
        return ""
    run = place.trained(row.network, weights=False) or place.home / row.network
    history = Run(run).history()
    lines = [
        _filled(
            f"{row.label}, per epoch: the authors' on the test set, PGD-20 with a step that their log does not "
            "state; ours on held-out images, PGD-20 with steps of 2.5 eps / 20."
        ),
        "",
        "| epoch | clean: ours | authors' | PGD-20: ours | authors' |",
        "|---:|---:|---:|---:|---:|",
    ]
    for epoch, (clean, robust) in enumerate(row.curve):
        ours = history[epoch] if epoch < len(history) else {}
        mine = [str(rate_of(ours[key], ours["examples"])) if key in ours else MISSING for key in ("clean", "robust")]
        lines.append(f"| {epoch + 1} | {mine[0]} | {clean:.2f} | {mine[1]} | {robust:.2f} |")
    return "\n".join(lines)


def latex(tables: Sequence[Table], place: Place) -> str:
    """All parts of a table as LaTeX tables without packages; the notes are in the captions."""
    parts = []
    for table in tables:
        head = " & ".join(["", *(rf"\multicolumn{{2}}{{c|}}{{{_escaped(column)}}}" for column in table.columns)])
        under = " & ".join(["training", *["ours & paper"] * len(table.columns)])
        body = [" & ".join(map(_escaped, line)) + r" \\" for line in cells_of(table, place)]
        caption = " ".join([f"{table.title}.", SIZES[place.budget], *table.notes])
        columns = "|l|" + "rr|" * len(table.columns)
        parts += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\hline",
            rf"{head} \\",
            rf"{under} \\",
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    for character in r"&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace("`", "'").replace("~", r"\textasciitilde{}")
