"""Every result as a flat record, for `atent show --json` and `--csv`."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atent.report.tables import Group
from atent.storage.brackets import Bracket
from atent.storage.certificates import Certified
from atent.storage.rows import Rate, clean_rate, robust_rate, variant_of

if TYPE_CHECKING:
    from atent.evaluation.estimate import Estimated

FIELDS = (
    "kind",  # attack, worst case, estimate, certificate, bracket
    "network",
    "weights",
    "variant",  # how the network was smoothed, and in which half precision it ran
    "data",
    "threat",
    "method",
    "seed",
    "batch",
    "images",
    "clean",  # accuracies and the ends of the interval, in [0, 1]
    "robust",
    "low",
    "high",
    "file",
)
Record = dict[str, Any]


def records(
    attacked: Iterable[Group],
    estimated: "Iterable[Estimated]",
    proven: Iterable[Certified],
    between: Iterable[Bracket],
) -> list[Record]:
    """A record for each line of the tables; a field that a result does not have is None."""
    found = [
        *(record for group in attacked for record in _attacks(group)),
        *map(_estimate, estimated),
        *(record for one in proven for record in _certificates(one)),
        *(record for both in between for record in _brackets(both)),
    ]
    return [{field: record.get(field) for field in FIELDS} for record in found]


def to_json(found: list[Record]) -> str:
    return json.dumps(found, indent=2)


def to_csv(found: Iterable[Record], fields: Sequence[str] = FIELDS) -> str:
    """One line for each record. A text that a spreadsheet would run as a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _inert(value) for key, value in record.items()} for record in found)
    return text.getvalue().rstrip("\n")


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _attacks(group: Group) -> Iterator[Record]:
    header = group.attacks[0].header
    place = {"network": group.run, **_which(header), "data": group.data, "threat": str(group.threat)}
    for title, file, attack in zip(group.titles, group.files, group.attacks, strict=True):
        how = {"method": title, "seed": attack.header.get("seed"), "batch": attack.header.get("batch")}
        yield {"kind": "attack", **place, **how, **_rates(attack.rows), "file": str(file)}
    if len(group.attacks) > 1:
        rows = group.attacks[0].rows
        yield {"kind": "worst case", **place, "method": "worst case", **_rates(rows), **_interval(group.robust)}


def _which(header: Mapping[str, Any]) -> Record:
    return {"weights": header["weights"], "variant": variant_of(header) or None}


def _rates(rows: Any) -> Record:
    return {"images": len(rows), "clean": clean_rate(rows).value, **_interval(robust_rate(rows))}


def _interval(rate: Rate) -> Record:
    return dict(zip(("robust", "low", "high"), rate, strict=True))


def _estimate(one: "Estimated") -> Record:
    value, low, high = (percent / 100 for percent in one.estimate)
    place = {"network": one.run, "weights": one.weights, "variant": one.variant or None}
    place |= {"data": one.data, "threat": one.threat}
    accuracy = {"images": one.whole, "robust": value, "low": low, "high": high}
    return {"kind": "estimate", **place, "method": f"{one.name}{one.level}", **accuracy, "file": _path(one.path)}


def _certificates(one: Certified) -> Iterator[Record]:
    for radius, threat in one.radii:
        where = {"threat": threat or f"l2:{radius:.6g}", "images": len(one.rows), "file": _path(one.path)}
        yield {"kind": "certificate", **_smoothed(one), **where, **_interval(one.accuracy(radius))}


def _brackets(both: Bracket) -> Iterator[Record]:
    """The robust accuracy lies between `low` and `high`, the outer ends of the intervals of both sides."""
    for radius in both.radii:
        shares = both.shares(radius)
        ends = {"low": shares.certified.low, "high": shares.unbroken.high}
        where = {"threat": f"l2:{radius:.6g}", "images": len(both.rows), "file": _path(both.path)}
        method = f"{_smoothed(both.certified)['method']}; attacked by {both.header['label']}"
        yield {"kind": "bracket", **_smoothed(both.certified), "method": method, **where, **ends}


def _smoothed(one: Certified) -> Record:
    how = one.header
    half = f", in {how['amp']}" if "amp" in how else ""
    method = f"smoothed with sigma {how['sigma']:g}, n {how['n']}, alpha {how['alpha']:g}{half}"
    return {
        "network": one.run,
        **_which(how),
        "data": how["data"],
        "method": method,
        "seed": how.get("seed"),
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
