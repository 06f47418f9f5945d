"""The page of one run, and that of several next to each other."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from atent.evaluation.estimate import Estimated
from atent.page.accuracy import (
    attack_tables,
    bracket_parts,
    certified_parts,
    class_parts,
    eps_figures,
    estimate_table,
)
from atent.page.commands import attack_command, training_commands, verify_command
from atent.page.curves import by_rows, compared_trainings
from atent.page.gallery import gallery
from atent.page.gather import Found
from atent.page.parts import Commands, Fold, Headline, Note, Part, Section
from atent.page.side_by_side import LONG, difference_parts, overview_table, setting_table
from atent.page.training import cost_table, repeat_parts, setting_folds, training_parts, training_warnings
from atent.report.tables import Group
from atent.report.verdict import verdict
from atent.storage.certificates import Certified


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    words: str
    headlines: list[Headline]
    sections: list[Section] = field(default_factory=list)


def page_of(runs: Sequence[Found]) -> Page:
    """One run in detail, or several side by side."""
    return _one(runs[0]) if len(runs) == 1 else _several(runs)


def _one(found: Found) -> Page:
    main, shown = found.main, gallery(found)
    summary: list[Part] = [Note(line, "verdict") for line in verdicts(found)]
    if not found.evaluated:
        summary += _next(found)
    under_attack = [*eps_figures("eps", found.groups, by_network=False), *attack_tables(found.groups)]
    sections = [
        Section("summary", "Summary", summary),
        Section("attacks", "Accuracy under attack", [*under_attack, *estimate_table(found.estimates)]),
        Section("certified", "Certified accuracy", certified_parts("certified", found.certified)),
        Section("two-sided", "Two-sided accuracy", bracket_parts("two-sided", found.brackets)),
        Section("classes", "Robustness by class", class_parts("classes", main) if main else []),
        Section("gallery", "Attacked images", list(shown[0])),
        Section("training", "Training", training_parts("training", found)),
        Section("checks", "Checks and warnings", check_parts([found], shown[1])),
        Section("cost", "Cost", cost_table([found])),
        Section("repeat", "Repeat it", [*repeat_parts(found), _afterwards([found])]),
    ]
    return Page(found.name, _network(found), _headlines(found), [section for section in sections if section.parts])


def _network(found: Found) -> str:
    """The network and its data, from the recipe or from the rows."""
    known = found.recipe
    headers = [group.attacks[0].header for group in found.groups] + [one.header for one in found.certified]
    if not known and headers:
        known = headers[0]
    return " on ".join(str(known[key]) for key in ("model", "data") if key in known)


def verdicts(found: Found) -> list[str]:
    """The result for each threat in one line."""
    lines = []
    for group in found.groups:
        name = f"worst case of {len(group.attacks)} attacks" if len(group.attacks) > 1 else group.titles[0]
        size, clean = len(group.attacks[0].rows), group.clean.value
        lines.append(verdict(name, str(group.threat), size, group.robust, clean, found.warnings(group)))
    most = [line for line, group in zip(lines, found.groups, strict=True) if group is found.main]
    chosen = lines if len(lines) <= 3 else most
    lines = [*chosen, *map(str, found.estimates), *map(_certified_words, found.certified[:3])]
    return [line.replace(" %", "\u00a0%") for line in lines]


def _certified_words(one: Certified) -> str:
    radius, rate, how = (middle := _middle(one)), one.accuracy(middle), one.header
    ends = f"{100 * rate.value:.1f} % certified [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
    size = f"{len(one.rows):,} test images"
    return f"smoothed with sigma {how['sigma']:g}, l2 radius {radius:.4g}, {size}: {ends}"


def _middle(one: Certified) -> float:
    """The radius that stands for all: the middle one."""
    return one.radii[len(one.radii) // 2][0]


def _headlines(found: Found) -> list[Headline]:
    """The numbers at the top: clean and robust accuracy at the first threat, whole test sets, a certificate."""
    shown = []
    if main := found.main:
        images = f"{len(main.attacks[0].rows):,} {main.data} test images"
        how = "worst case" if len(main.attacks) > 1 else main.titles[0]
        for rate, words in ((main.clean, f"clean accuracy, {images}"), (main.robust, f"at {main.threat}, {how}")):
            shown.append(Headline(f"{100 * rate.value:.1f} %", words, f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"))
    for one in found.estimates[:1]:
        value, low, high = one.estimate
        words = f"at {one.threat}, {one.name}, whole test set"
        shown.append(Headline(f"{value:.1f} %", words, f"{low:.1f} to {high:.1f}"))
    for proven in found.certified[:1]:
        rate = proven.accuracy(radius := _middle(proven))
        ends = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
        words = f"certified at l2 radius {radius:.4g}, {len(proven.rows):,} {proven.header['data']} test images"
        shown.append(Headline(f"{100 * rate.value:.1f} %", words, ends))
    return shown


def _next(found: Found) -> list[Part]:
    if found.trained:
        words = "The network is trained, and no attack or certificate is finished. Next:"
        return [Commands(words, [attack_command(found)])]
    asked, known = found.recipe.get("epochs"), training_commands(found)[-1:]
    note = Note("No attack or certificate is finished, and the folder has no trained network.", "warning")
    halted = isinstance(asked, int) and len(found.history) < asked
    return [note, Commands("The same command continues the training:", known)] if halted and known else [note]


def check_parts(runs: Sequence[Found], more: Sequence[str] = ()) -> list[Part]:
    """The warnings of the checks and of the training, and the files that were left out."""
    parts: list[Part] = []
    for found in runs:
        start = f"{found.name}: " if len(runs) > 1 else ""
        for one in found.checks:
            place = f"{start}checks at {one.threat}, {one.data}"
            parts += [Note(f"{place}: {warning}.", "warning") for warning in one.warnings]
            parts += [] if one.warnings else [Note(f"{place}: nothing suspicious.")]
        parts += [Note(f"{start}{words}.", "warning") for words in training_warnings(found)]
        if found.groups and not found.checks and len(runs) == 1:
            parts.append(Note("The checks for failed attacks were not run; atent attack --checks runs them."))
        parts += [Note(f"{start}{'left' if start else 'Left'} out: {one}.", "warning") for one in found.problems]
    return [*parts, *(Note(f"Left out: {problem}.", "warning") for problem in more)]


def _afterwards(runs: Sequence[Found]) -> Commands:
    folders = [str(found.folder) for found in runs]
    lines = [shlex.join(["atent", "report", *folders])]
    if len(runs) == 1 and (check := verify_command(runs[0])):
        lines.insert(0, check)
    return Commands("Check the rows, and make this page again:" if len(lines) > 1 else "Make this page again:", lines)


def _several(runs: Sequence[Found]) -> Page:
    groups = [group for found in runs for group in found.groups]
    estimated = [one for found in runs for one in found.estimates]
    proven = [one for found in runs for one in found.certified]
    rows = [(found.name, found.main.clean, found.main.robust) for found in runs if found.main]
    overview: list[Part] = [overview_table(runs), *setting_table(runs)]
    if len(rows) > 1:
        caption = "Accuracy of each run at its own threat, in the worst case over its attacks."
        overview.insert(0, by_rows("overview", rows, caption))
    trained = compared_trainings("training", {found.name: found.history for found in runs})
    sections = [
        Section("overview", "Side by side", overview),
        Section("differences", "Differences", difference_parts(runs)),
        Section("attacks", "Accuracy under attack", _attacks(groups, estimated)),
        Section("certified", "Certified accuracy", certified_parts("certified", proven)),
        Section("training", "Training", [part for part in [trained] if part]),
        Section("checks", "Checks and warnings", check_parts(runs)),
        Section("cost", "Cost", [Fold("The cost of each training and attack", cost_table(runs))]),
        Section(
            "repeat",
            "Settings and commands of each run",
            [*(Fold(found.name, [*repeat_parts(found), *setting_folds(found)]) for found in runs), _afterwards(runs)],
        ),
    ]
    data = ", ".join(dict.fromkeys(str(found.recipe["data"]) for found in runs if found.recipe.get("data")))
    return Page(f"{len(runs)} runs", data, [], [section for section in sections if section.parts])


def _attacks(groups: Sequence[Group], estimated: Sequence[Estimated]) -> list[Part]:
    tables, lines = attack_tables(groups), sum(len(group.attacks) for group in groups)
    if lines > LONG:
        tables = [Fold(f"Every attack of every run: {lines} of them", tables)]
    return [*eps_figures("eps", groups, by_network=True), *tables, *estimate_table(estimated)]
