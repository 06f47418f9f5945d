"""The sections of a page on accuracy: under attack, certified, from both sides, by class."""

from collections import Counter
from collections.abc import Iterable, Sequence

from atent.evaluation.estimate import Estimated
from atent.page.curves import against_eps, by_rows, certified_curve, two_sided
from atent.page.parts import Cell, Drawing, Note, Part, Rows, Table
from atent.report.brackets import overlap_words
from atent.report.tables import (
    UNVERIFIED,
    Group,
    Result,
    class_results,
    distance_words,
    mark,
    result_lines,
)
from atent.storage.brackets import Bracket
from atent.storage.certificates import Certified
from atent.storage.row_format import Content
from atent.storage.rows import Rate, Row, robust_rate

CLASSES = 20  # in a table; of more, those with the lowest accuracy under attack
CONFUSED = 12  # classes in a confusion matrix; of more, a list of the most frequent confusions


def rate_cell(rate: Rate, strong: bool = False) -> Cell:
    return Cell(str(rate), rate.value, strong=strong)


def count_cell(count: int) -> Cell:
    return Cell(f"{count:,}", count)


def attack_tables(groups: Iterable[Group]) -> list[Part]:
    """A table for each data set: a line for each network, threat and attack, and the worst case."""
    lines = result_lines(groups)
    parts: list[Part] = []
    for data in dict.fromkeys(line.data for line in lines):
        mine = [line for line in lines if line.data == data]
        measured = any(line.distance is not None for line in mine)
        columns = ["network", "threat", "attack", "images", "clean % [95 %]", "robust % [95 %]"]
        rows = [_attack_row(line, measured) for line in mine]
        note = "" if all(line.verified for line in mine) else UNVERIFIED
        distance = ["median distance"] if measured else []
        whose = "" if len({line.run for line in mine}) > 1 else f" of {mine[0].run}"
        caption = f"Accuracy{whose} on {data} test images, without an attack and under attack"
        parts.append(Table.of(caption, [*columns, *distance], rows, left=3, note=note).compact(0))
    return parts


def _attack_row(line: Result, measured: bool) -> list[Cell]:
    worst = line.attack == "worst case"
    title = Cell(f"{line.attack}{mark(line.verified)}", strong=worst)
    cells = [Cell(line.run), Cell(line.threat), title, count_cell(line.examples)]
    cells += [rate_cell(line.clean), rate_cell(line.robust, worst)]
    return [*cells, Cell(distance_words(line), line.distance)] if measured else cells


def eps_figures(key: str, groups: Sequence[Group], *, by_network: bool) -> list[Part]:
    """For each norm with several radii: a line for each attack that has several, or for each network its worst case."""
    found: dict[tuple[str, str], dict[str, list[tuple[float, Rate]]]] = {}
    for group in sorted(groups, key=lambda one: one.threat.eps):
        lines = found.setdefault((group.data, group.threat.norm), {})
        if by_network:
            lines.setdefault(group.run, []).append((group.threat.eps, group.robust))
            continue
        for title, attack in zip(group.titles, group.attacks, strict=True):
            lines.setdefault(title, []).append((group.threat.eps, robust_rate(attack.rows)))
    parts: list[Part] = []
    for number, ((_, norm), lines) in enumerate(found.items()):
        several = {name: line for name, line in lines.items() if len({eps for eps, _ in line}) > 1}
        if several:
            parts.append(against_eps(f"{key}-{number}", norm, several))
    return parts


def estimate_table(found: Sequence[Estimated]) -> list[Part]:
    """The accuracies of whole test sets, estimated with a sample."""
    rows: Rows = []
    for one in found:
        rate = Rate(*(percent / 100 for percent in one.estimate))
        sizes = [count_cell(one.whole), count_cell(one.drawn), count_cell(one.broken)]
        rows.append([Cell(f"{one.run} ({one.weights[:6]})"), one.data, one.threat, one.name, *sizes, rate_cell(rate)])
    columns = ["network", "data", "threat", "attack", "images", "sampled", "of these broken", "robust % [interval]"]
    caption = "Accuracy of the whole test set: a cheap attack on all images, an expensive one on a random sample"
    return [Table.of(caption, columns, rows, left=4)] if rows else []


def certified_parts(key: str, found: Sequence[Certified]) -> list[Part]:
    """Certified accuracy at each radius, and a curve."""
    if not found:
        return []
    names = certified_names(found)
    rows: Rows = [
        [name, one.header["data"], Cell(f"{radius:.4g}", radius), threat, *_sized(one, radius)]
        for name, one in names.items()
        for radius, threat in one.radii
    ]
    columns = ["network", "data", "l2 radius", "covers", "images", "certified % [95 %]"]
    how = "; ".join(
        f"{name}: n {one.header['n']:,}, alpha {one.header['alpha']:g}, abstained {one.abstained} %"
        for name, one in names.items()
    )
    whose = f" of {next(iter(names))}" if len(names) == 1 else ""
    caption = f"Certified accuracy{whose}, which no perturbation within the radius can lower"
    table = Table.of(caption, columns, rows, left=4)
    table = table._replace(numeric=frozenset({2, 4, 5}), note=how if len(names) <= 6 else "")
    return [certified_curve(key, names), table.compact(0, 1, 3)]


def _sized(one: Certified, radius: float) -> list[Cell]:
    return [count_cell(len(one.rows)), rate_cell(one.accuracy(radius))]


def certified_names(found: Iterable[Certified]) -> dict[str, Certified]:
    """Each certification with a name of its own."""
    names: dict[str, Certified] = {}
    for one in found:
        name = f"{one.run}, sigma {one.header['sigma']:g}"
        same = sum(other == name or other.startswith(f"{name} (") for other in names)
        names[f"{name} ({same + 1})" if same else name] = one
    return names


def bracket_parts(key: str, found: Sequence[Bracket]) -> list[Part]:
    """The robust accuracy of smoothed networks from both sides."""
    parts: list[Part] = []
    for number, one in enumerate(found):
        rows: Rows = []
        for radius in one.radii:
            share = one.shares(radius)
            shares = (share.certified, share.open, share.broken)
            between = f"{100 * share.certified.value:.2f} to {100 * share.unbroken.value:.2f}"
            values = [Cell(f"{100 * rate.value:.2f}", rate.value) for rate in shares]
            ends = f"[{100 * share.certified.low:.1f}, {100 * share.unbroken.high:.1f}]"
            rows.append([Cell(f"{radius:.4g}", radius), *values, f"{between} {ends}"])
        how = one.header
        caption = f"Two-sided accuracy of {one.certified.run}, sigma {how['sigma']:g}, attacked by {how['label']}"
        columns = ["l2 radius", "certified %", "open %", "broken %", "robust %, between [95 %]"]
        parts += [two_sided(f"{key}-{number}", one), Table.of(caption, columns, rows, note=f"{overlap_words(one)}.")]
    return parts


def class_parts(key: str, group: Group) -> list[Part]:
    """The accuracies of each class in the worst case over the attacks, and what is predicted under attack."""
    ((_, lines),) = class_results([group])
    if len(lines) < 2:
        return []
    shown = lines
    if len(lines) > CLASSES:
        shown = sorted(lines, key=lambda line: line.robust.value)[:CLASSES]
    least = f", the {CLASSES} lowest of {len(lines)}" if len(lines) > CLASSES else ""
    how = f"worst case of {len(group.attacks)} attacks" if len(group.attacks) > 1 else group.titles[0]
    caption = f"Accuracy by class, {group.threat}, {how}{least}"
    rows: Rows = [[one.name, count_cell(one.examples), rate_cell(one.clean), rate_cell(one.robust)] for one in shown]
    columns = ["class", "images", "clean % [95 %]", "robust % [95 %]"]
    figure: Drawing = by_rows(key, [(one.name, one.clean, one.robust) for one in shown], f"{caption}.")
    attack, name = min(zip(group.attacks, group.titles, strict=True), key=lambda pair: robust_rate(pair[0].rows).value)
    return [figure, Table.of(caption, columns, rows), *_confusion(group, attack, name)]


def _confusion(group: Group, attack: Content[Row], name: str) -> list[Part]:
    """What the network predicts under the attack that leaves the lowest accuracy."""
    predicted = [(row["label"], row["label"] if row["robust"] else row["adversarial"]) for row in attack.rows]
    counts, totals = Counter(predicted), Counter(row["label"] for row in attack.rows)
    labels = sorted({label for pair in counts for label in pair})
    title = f"{name}, {group.threat}"
    if len(labels) <= CONFUSED:
        rows = []
        for label in labels:
            shares = [counts[label, other] / max(totals[label], 1) for other in labels]
            cells = [
                Cell(str(counts[label, other] or ""), counts[label, other], share, strong=label == other)
                for other, share in zip(labels, shares, strict=True)
            ]
            rows.append([Cell(_name(group, label)), *cells])
        columns = ["class", *(_name(group, label) for label in labels)]
        note = "Rows: the class. Columns: the prediction under attack. On the diagonal: images that withstand."
        caption = f"Confusion under attack: {title}, number of images"
        return [Table.of(caption, columns, rows, note=note)._replace(matrix=True)]
    wrong = Counter({pair: count for pair, count in counts.items() if pair[0] != pair[1]}).most_common(CLASSES)
    if not wrong:
        return [Note(f"Under {title} no image is taken for another class.")]
    listed: Rows = [[_name(group, a), Cell(_name(group, b)), count_cell(count)] for (a, b), count in wrong]
    caption = f"The most frequent confusions under attack: {title}"
    return [Table.of(caption, ["class", "taken for", "images"], listed, left=2)]


def _name(group: Group, label: int) -> str:
    return group.classes[label] if label < len(group.classes) else str(label)
