"""Runs compared image by image: what two networks share, and how far they differ there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from atent.errors import UserError
from atent.report.paired import Paired
from atent.report.tables import Group, finished
from atent.storage.certificates import Certified, certified, right
from atent.storage.row_file import leave_out
from atent.storage.row_format import settings
from atent.storage.rows import Row, variant_of

# What a measure is compared at, or what may differ between networks without being a difference of the measurement.
_PLACE = ("label", "data", "threat", "images", "examples", "every", "model", "weights", "radii", "exact", "split")
CLEAN, CERTIFIED = "clean", "certified"
SHOWN = 3  # measurements in a message


class Key(NamedTuple):
    """What two networks must share to be compared: the images, the threat ("" for clean images) and the measure."""

    data: str
    digest: str
    threat: str
    title: str


class Measure(NamedTuple):
    """Which images a network gets right in one measurement, by their index; their labels; and how it was made."""

    hits: dict[int, bool]
    labels: dict[int, int]
    how: dict[str, Any]


class Network(NamedTuple):
    """The measurements of one network, in the order of the tables; of one key there may be several."""

    name: str
    weights: str
    measures: dict[Key, list[Measure]]

    @property
    def words(self) -> str:
        """What was measured, for a message."""
        found = [f"{key.title} {key.threat}" for key in self.measures if key.title != CLEAN]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        data = ", ".join(dict.fromkeys(key.data for key in self.measures))
        return f"{self.name} has {', '.join(found[:SHOWN])}{more} on {data}"


class Difference(NamedTuple):
    """A network next to the reference in one measurement; `notes` name every setting in which the two differ."""

    reference: Network
    network: Network
    key: Key
    counts: Paired
    notes: tuple[str, ...]


class Comparison(NamedTuple):
    """Networks next to a reference. `remarks` state what was left out, and why."""

    reference: str
    differences: list[Difference]
    remarks: list[str]


def compare(
    folders: Sequence[Path], against: Path | None = None, report: Callable[[str], None] = leave_out
) -> Comparison:
    """Every network of the folders next to that of `against` (default: the first), where they share images and attack.

    A UserError if nothing is shared. Damaged and unfinished files are passed to `report`.
    """
    order = list(dict.fromkeys(([against] if against else []) + list(folders)))
    read = [(folder, networks_of(folder, name, report)) for folder, name in zip(order, names_of(order), strict=True)]
    return compare_networks(read)


def compare_networks(read: Sequence[tuple[Path, list[Network]]]) -> Comparison:
    """As `compare`, of networks that were read; the reference is that of the first folder with the most rows."""
    empty = [f"left out: {folder} has no finished attack or certificate" for folder, found in read if not found]
    if len(read) < 2 or not read[0][1]:
        raise UserError(
            f"{'; '.join(empty)}; allowed: two run folders or more that have rows".removeprefix("left out: ")
        )
    reference, *others = sorted(read[0][1], key=lambda one: -sum(map(len, one.measures.values())))
    others += [network for _, found in read[1:] for network in found]
    remarks, differences = list(empty), list[Difference]()
    for network in others:
        found = list(_differences(reference, network))
        differences += found
        if network.weights == reference.weights:
            remarks.append(f"{network.name} and {reference.name} have the same weights")
        if not found:
            remarks.append(f"left out: {reference.words}; {network.words}; nothing of it is shared")
    if not differences:
        raise UserError("; ".join(remark.removeprefix("left out: ") for remark in remarks))
    return Comparison(reference.name, differences, remarks)


def names_of(folders: Sequence[Path]) -> list[str]:
    """The name of each folder; its path where several have the same name."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for folder, name in zip(folders, names, strict=True)]


def networks_of(folder: Path, name: str = "", report: Callable[[str], None] = leave_out) -> list[Network]:
    """The networks whose rows a run folder has: one, or several if it was trained further or smoothed in ways."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; allowed: run folders")
    return measured(name or folder.resolve().name, finished(folder, report), certified(folder, report))


def measured(name: str, groups: Iterable[Group], proven: Iterable[Certified]) -> list[Network]:
    """The networks of these results, one for each hash of weights, network and smoothing."""
    found: dict[tuple[str, str, str], dict[Key, list[Measure]]] = {}
    for group in groups:
        header = group.attacks[0].header
        which = (header["weights"], header["model"], variant_of(header))
        for key, measure in _measures(group):
            found.setdefault(which, {}).setdefault(key, []).append(measure)
    for one in proven:
        measures = found.setdefault((one.header["weights"], one.header["model"], ""), {})
        for key, measure in _proofs(one):
            measures.setdefault(key, []).append(measure)
    several = len({weights for weights, *_ in found}) > 1
    return [
        Network(", ".join(filter(None, (f"{name} ({weights[:6]})" if several else name, smoothing))), weights, measures)
        for (weights, _, smoothing), measures in found.items()
    ]


def _measures(group: Group) -> Iterator[tuple[Key, Measure]]:
    threat = str(group.threat.with_radius(group.threat.eps))  # one text for all spellings
    for attack in group.attacks:
        header, rows = attack.header, attack.rows
        key = Key(group.data, header.get("images", ""), threat, header["label"])
        labels, how = {row["index"]: row["label"] for row in rows}, _how(header)
        yield key._replace(threat="", title=CLEAN), Measure(_clean(rows), labels, {})
        yield key, Measure({row["index"]: row["robust"] for row in rows}, labels, how)


def _clean(rows: Iterable[Row]) -> dict[int, bool]:
    return {row["index"]: row["clean"] == row["label"] for row in rows}


def _proofs(one: Certified) -> Iterator[tuple[Key, Measure]]:
    labels = {row["index"]: row["label"] for row in one.rows}
    for radius in sorted({radius for radius, _ in one.radii}):
        hits = {row["index"]: right(row) and row["radius"] >= radius for row in one.rows}
        place = (one.header["data"], one.header.get("images", ""), f"l2:{radius:.6g}")
        yield Key(*place, CERTIFIED), Measure(hits, labels, _how(one.header))


def _how(header: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a measurement, the fields of its attack among them."""
    found = {key: value for key, value in settings(header).items() if key not in (*_PLACE, "attack")}
    return found | {f"attack {key}": value for key, value in header.get("attack", {}).items()}


def _differences(reference: Network, network: Network) -> Iterator[Difference]:
    """Each shared measurement, then for each threat the worst case over the attacks that both have."""
    shared: dict[Key, tuple[Measure, Measure]] = {}
    for key in (key for key in reference.measures if key in network.measures):
        shared[key] = min(product(reference.measures[key], network.measures[key]), key=_preference)
        yield from _difference(reference, network, key, *shared[key], _notes(*shared[key]))
    for place in dict.fromkeys(key[:3] for key in shared if key.title not in (CLEAN, CERTIFIED)):
        pairs = {key.title: pair for key, pair in shared.items() if key[:3] == place and key.title != CERTIFIED}
        if len(pairs) > 1:
            first, second = (_worst([pair[k] for pair in pairs.values()]) for k in (0, 1))
            key = Key(*place, f"worst case of {len(pairs)}")
            notes = [f"{title}: {note}" for title, pair in pairs.items() for note in _notes(*pair)]
            yield from _difference(
                reference, network, key, first, second, [f"worst case of {', '.join(pairs)}", *notes]
            )


def _difference(
    reference: Network, network: Network, key: Key, first: Measure, second: Measure, notes: list[str]
) -> Iterator[Difference]:
    common = first.hits.keys() & second.hits.keys()
    if not common:
        return
    if other := sorted(index for index in common if first.labels[index] != second.labels[index]):
        words = f"image {other[0]} has label {first.labels[other[0]]} in one and {second.labels[other[0]]} in the other"
        raise UserError(f"{reference.name} and {network.name}: {key.data} is not the same data in both: {words}")
    sizes = (len(first.hits), len(second.hits))
    if sizes != (len(common), len(common)):
        notes = [*notes, f"{len(common):,} images of both; {sizes[0]:,} and {sizes[1]:,} were measured"]
    yield Difference(reference, network, key, Paired.of(first.hits, second.hits), tuple(notes))


def _preference(pair: tuple[Measure, Measure]) -> tuple[int, int]:
    """Of several measurements: those that differ in the fewest settings, and of these the ones with most images."""
    first, second = pair
    return len(_notes(first, second)), -len(first.hits.keys() & second.hits.keys())


def _notes(first: Measure, second: Measure) -> list[str]:
    """The settings in which two measurements differ, with both values."""
    keys = [*first.how, *(key for key in second.how if key not in first.how)]
    values = [(key, first.how.get(key, "unknown"), second.how.get(key, "unknown")) for key in keys]
    return [f"{key} {one} and {other}" for key, one, other in values if one != other]


def _worst(measures: Sequence[Measure]) -> Measure:
    """The images that are right in every measurement, of those that all have."""
    common = set.intersection(*(set(one.hits) for one in measures))
    hits = {index: all(one.hits[index] for one in measures) for index in common}
    return Measure(hits, measures[0].labels, {})
