"""Several runs next to each other: how they were trained, what differs, and paired differences."""

from collections.abc import Sequence

from atent.errors import UserError
from atent.page.accuracy import count_cell, rate_cell
from atent.page.curves import paired_differences
from atent.page.gather import Found
from atent.page.parts import Cell, Fold, Note, Part, Rows, Table
from atent.page.training import flat
from atent.report.compare import CERTIFIED, CLEAN, Comparison, Difference, Key, compare_networks, measured
from atent.report.differences import BELOW, cells
from atent.report.verdict import checks_in_words

DIFFERENT = 8  # settings in a table of runs
LONG = 60  # lines of a table that is not folded
REMARKS = 6  # that are not folded


def overview_table(runs: Sequence[Found]) -> Table:
    """How each run was trained, and its accuracy at one threat."""
    rows: Rows = []
    for found in runs:
        recipe, main = flat(found.recipe), found.main
        made = [recipe.get(key, "") for key in ("defense.name", "threat", "data", "model")]
        epochs = Cell(
            f"{len(found.history)} of {recipe.get('epochs', '?')}" if found.recipe else "", len(found.history)
        )
        result: list[Cell | str] = ["", "", "", "", ""]
        if main:
            checks = checks_in_words(found.warnings(main))
            images = count_cell(len(main.attacks[0].rows))
            result = [str(main.threat), images, rate_cell(main.clean), rate_cell(main.robust), checks]
        rows.append([found.name, *made, epochs, *result])
    columns = ["run", "defense", "trained for", "data", "network", "epochs", "attacked at", "images"]
    caption = "The runs: how they were trained"
    if any(found.main for found in runs):
        caption += ", and their accuracy at one threat, in the worst case over its attacks"
    table = Table.of(caption, [*columns, "clean % [95 %]", "robust % [95 %]", "checks"], rows)
    return table._replace(numeric=frozenset({5, 7, 8, 9})).compact(2, 3, 4, 5, 7, 10).filled()


def setting_table(runs: Sequence[Found]) -> list[Part]:
    """The settings in which the recipes differ."""
    recipes = {found.name: flat(found.recipe) for found in runs if found.recipe}
    keys = dict.fromkeys(key for recipe in recipes.values() for key in recipe)
    different = [key for key in keys if len({recipe.get(key) for recipe in recipes.values()}) > 1]
    if not different:
        return [Note("The recipes of the runs are equal.")] if len(recipes) > 1 else []
    rows = [[name, *(recipe.get(key, "") for key in different[:DIFFERENT])] for name, recipe in recipes.items()]
    more = f"{len(different) - DIFFERENT} more settings differ: {', '.join(different[DIFFERENT:])}."
    note = more if len(different) > DIFFERENT else ""
    table = Table.of("The settings in which the runs differ", ["run", *different[:DIFFERENT]], rows, note=note)
    return [table._replace(numeric=frozenset())]


def difference_parts(runs: Sequence[Found]) -> list[Part]:
    """Paired differences from the first run, with a figure of the attack that most networks share."""
    try:
        found = compare_networks([(one.folder, measured(one.name, one.groups, one.certified)) for one in runs])
    except UserError as error:
        return [Note(f"Nothing can be compared image by image: {error}.")]
    common = _common(found, runs[0])
    shown = [one for one in found.differences if one.key == common]
    parts: list[Part] = [_difference_figure(found, shown)]
    if len(found.differences) > LONG:
        folded = Fold(f"All {len(found.differences)} differences", [_difference_table(found, found.differences)])
        parts += [_difference_table(found, shown, f"{common.title} {common.threat}: "), folded]
    else:
        parts.append(_difference_table(found, found.differences))
    remarks: list[Part] = [Note(f"{remark.replace('left out: ', 'Left out: ', 1)}.") for remark in found.remarks]
    if len(remarks) > REMARKS:
        remarks = [Fold(f"What is not compared, and other remarks: {len(remarks)}", remarks)]
    return [*parts, *remarks]


def _difference_table(found: Comparison, some: Sequence[Difference], start: str = "") -> Table:
    head, *rows = cells(some)
    values: Rows = []
    for one, (threat, title, *texts) in zip(some, rows, strict=True):
        counts = one.counts
        numbers = (counts.images, counts.first_rate.value, counts.second_rate.value, counts.difference.value, counts.p)
        values.append([one.network.name, threat, title, *map(Cell, texts, numbers)])
    caption = f"{start}paired differences from {found.reference}, on the images that both networks have"
    caption = f"{caption[:1].upper()}{caption[1:]}"
    notes = dict.fromkeys(note for one in some for note in one.notes)
    words = " ".join([BELOW, *(f"({k}) {note}." for k, note in enumerate(notes, start=1))])
    return Table.of(caption, ["network", *head], values, left=3, note=words)


def _difference_figure(found: Comparison, shown: Sequence[Difference]) -> Part:
    rows, key = [(one.network.name, one.counts) for one in shown], shown[0].key
    return paired_differences("differences", rows, found.reference, f"{key.title} {key.threat}".strip())


def _common(found: Comparison, first: Found) -> Key:
    """The measurement that most networks share; of several, the main threat of the first run, then a worst case."""
    main = str(first.main.threat.with_radius(first.main.threat.eps)) if first.main else ""
    attacks = [one for one in found.differences if one.key.title not in (CLEAN, CERTIFIED)] or found.differences
    keys = [one.key for one in attacks]
    most = max(map(keys.count, keys))
    shared = [key for key in dict.fromkeys(keys) if keys.count(key) == most]
    middle = shared[len(shared) // 2]  # of certificates: neither radius 0 nor the largest
    return max(shared, key=lambda key: (key.threat == main, key.title.startswith("worst case"), key == middle))
