"""A comparison of runs as text: tables on the terminal, Markdown, LaTeX and CSV."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from atent.report.compare import Comparison, Difference
from atent.report.records import to_csv
from atent.report.terminal import print_table, tell
from atent.storage.rows import Rate

FIELDS = (
    "reference",
    "network",
    "reference_weights",  # their sha256
    "weights",
    "data",
    "threat",
    "measure",
    "images",
    "reference_accuracy",  # accuracies and differences in [0, 1]
    "accuracy",
    "difference",
    "low",
    "high",
    "only_reference",  # images that only one of the two gets right
    "only_network",
    "p",
    "notes",
)
IMAGES = 2  # the column of their number
BELOW = (
    "Difference: network minus reference, in points, with Newcombe's 95 % interval for paired proportions. "
    "p: McNemar's exact test, two-sided, not corrected for the number of comparisons."
)


def signed(rate: Rate) -> str:
    """A difference in points with its interval."""
    return f"{100 * rate.value:+.2f} [{100 * rate.low:+.2f}, {100 * rate.high:+.2f}]"


def p_words(p: float) -> str:
    """A p-value to two digits."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.2f}"


def print_comparison(found: Comparison) -> None:
    """A table for each network and data set, its notes, and what was left out."""
    for (network, data), some in _parts(found):
        columns, *rows = cells(some)
        sizes, count = {row[IMAGES] for row in rows}, ""
        if len(sizes) == 1:
            count = f"{rows[0][IMAGES]} "
            columns, *rows = ([*line[:IMAGES], *line[IMAGES + 1 :]] for line in [columns, *rows])
        print_table(f"{network} compared with {found.reference}: {count}{data} test images", columns, rows)
        for mark, note in _marked(some).items():
            tell(f"{mark} {note}.")
    tell(BELOW)
    for remark in found.remarks:
        tell(f"{remark}.")


def cells(some: Sequence[Difference]) -> list[list[str]]:
    """The head of a table, then its rows; a mark in the column of the measure refers to the notes below it."""
    marks = {note: mark for mark, note in _marked(some).items()}
    rows = [["threat", "attack", "images", "reference %", "network %", "difference [95 %]", "p"]]
    for one in some:
        counts, mark = one.counts, " ".join(marks[note] for note in one.notes)
        accuracies = [f"{100 * rate.value:.2f}" for rate in (counts.first_rate, counts.second_rate)]
        measure = f"{one.key.title} {mark}".rstrip()
        difference = [signed(counts.difference), p_words(counts.p)]
        rows.append([one.key.threat, measure, f"{counts.images:,}", *accuracies, *difference])
    return rows


def _marked(some: Iterable[Difference]) -> dict[str, str]:
    """Each note once, by its number in brackets."""
    notes = dict.fromkeys(note for one in some for note in one.notes)
    return {f"({number})": note for number, note in enumerate(notes, start=1)}


def _parts(found: Comparison) -> Iterator[tuple[tuple[str, str], list[Difference]]]:
    """The differences of each network on each data set."""
    for place, some in groupby(found.differences, key=lambda one: (one.network.name, one.key.data)):
        yield place, list(some)


def comparison_markdown(found: Comparison) -> str:
    """One table for all networks, with the notes below it."""
    columns, *rows = _with_networks(found)
    right = [column in ("images", "p") or "%" in column for column in columns]
    lines = [columns, ["---:" if one else "---" for one in right], *rows]
    body = ["| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines]
    body[1] = body[1].replace(" ", "")
    notes = [f"- {_markdown_cell(f'{mark} {note}')}" for mark, note in _marked(found.differences).items()]
    notes += [f"- {_markdown_cell(remark)}" for remark in found.remarks]
    head = f"Reference: {_markdown_cell(found.reference)}. {BELOW}"
    return "\n".join([*body, "", head, *(["", *notes] if notes else [])])


def comparison_latex(found: Comparison) -> str:
    """A LaTeX table without packages; the notes are in the caption."""
    columns, *rows = _with_networks(found)
    notes = [f"{mark} {note}." for mark, note in _marked(found.differences).items()]
    notes += [f"{remark}." for remark in found.remarks]
    caption = " ".join([f"Reference: {found.reference}.", BELOW, *notes])
    kinds = "".join("r" if column in ("images", "p") or "%" in column else "l" for column in columns)
    body = [" & ".join(map(escape_latex, line)) + r" \\" for line in rows]
    head = " & ".join(map(escape_latex, columns)) + r" \\"
    begin = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}", rf"\begin{{tabular}}{{{kinds}}}"]
    return "\n".join([*begin, r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", r"\end{table}"])


def comparison_csv(found: Comparison) -> str:
    """A record for each difference, with all digits."""
    records = []
    for one in found.differences:
        counts = one.counts
        accuracies = (counts.first_rate.value, counts.second_rate.value, *counts.difference)
        networks = (one.reference.name, one.network.name, one.reference.weights, one.network.weights)
        place = (*networks, one.key.data, one.key.threat, one.key.title, counts.images)
        values = (*place, *accuracies, counts.first, counts.second, counts.p, "; ".join(one.notes))
        records.append(dict(zip(FIELDS, values, strict=True)))
    return to_csv(records, FIELDS)


def _with_networks(found: Comparison) -> list[list[str]]:
    places = [["network", "data"], *([one.network.name, one.key.data] for one in found.differences)]
    return [[*place, *row] for place, row in zip(places, cells(found.differences), strict=True)]


def _markdown_cell(text: str) -> str:
    """The text with every character escaped that Markdown would interpret."""
    return re.sub(r"([\\|<*_`])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": "'",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    """The text with every character that LaTeX would interpret replaced."""
    return "".join(_LATEX.get(character, character) for character in text)
