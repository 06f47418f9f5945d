"""What a row claims follows from its own fields and those of the header: pure checks, without a network."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from atent.smoothing.bounds import ABSTAIN, certified_radius, lead_chance
from atent.smoothing.stopping import Smoothing
from atent.storage.brackets import BRACKET, BracketRow
from atent.storage.certificates import CERTIFY, CertifiedRow
from atent.storage.row_format import Kind, settings
from atent.storage.rows import Row
from atent.threat import TOLERANCE, Threat

SHOWN = 5  # faults of a kind that are named


def name_faults(path: Path, header: Mapping[str, Any]) -> Iterator[str]:
    """The name of a file ends with a hash of its settings."""
    digest = hashlib.sha256(json.dumps(settings(header), sort_keys=True).encode()).hexdigest()[:8]
    if (named := path.stem.rpartition("-")[2]) != digest:
        yield f"its header was changed, or it was renamed: its settings have the hash {digest}, its name has {named}"


def row_faults(kind: Kind[Any], header: Mapping[str, Any], rows: Sequence[Any]) -> Iterator[str]:
    """The rows whose fields contradict each other."""
    if kind is CERTIFY:
        yield from shown(fault for row in rows for fault in _certificate(header, row))
    elif kind is BRACKET:
        yield from shown(fault for row in rows for fault in _bracket(header, row))
    else:
        threat = Threat.parse(header["threat"])
        yield from shown(fault for row in rows for fault in _attack(threat, row))


def shown(faults: Iterable[str]) -> Iterator[str]:
    """The first faults, and how many more there are."""
    found = list(faults)
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"{len(found) - SHOWN:,} more of this kind"


def _attack(threat: Threat, row: Row) -> Iterator[str]:
    """robust: right without an attack, and not misclassified at a point within the radius."""
    near = row["size"] <= threat.eps + 10 * TOLERANCE * max(1.0, threat.eps)
    robust = row["clean"] == row["label"] and not (row["adversarial"] != row["label"] and near)
    if row["robust"] != robust:
        claim = f"image {row['index']}: robust is {row['robust']}, but label {row['label']}"
        predicted = f"predictions {row['clean']} and {row['adversarial']} and size {row['size']:g}"
        yield f"{claim}, {predicted} make it {robust}"
    if "distance" not in row and not near:
        yield f"image {row['index']}: its point has size {row['size']:g}, outside {threat}"


def _certificate(header: Mapping[str, Any], row: CertifiedRow) -> Iterator[str]:
    """The radius follows from the counts; with early stopping, as far as the last look shows."""
    counts = {int(k): count for k, count in row["counts"].items()}
    start, draws = f"image {row['index']}: radius {row['radius']:.4g}", sum(counts.values())
    if row["draws"] != header["n0"] + draws:
        yield f"image {row['index']}: {row['draws']} draws, but the counts have {draws} after the first {header['n0']}"
        return
    if row["prediction"] not in (ABSTAIN, row["top"]):
        yield f"image {row['index']}: prediction {row['prediction']}, but the first draws selected {row['top']}"
    agreed = counts.get(row["top"], 0)
    if header["exact"]:
        proven = certified_radius(agreed, draws, header["sigma"], header["alpha"])
        if (row["prediction"] == ABSTAIN) != (proven is None) or abs((proven or 0.0) - row["radius"]) > 1e-9:
            yield f"{start}, but {agreed:,} of {draws:,} draws prove {proven or 0:.4g}"
        return
    how = _smoothing(*(header[key] for key in ("sigma", "n0", "n", "alpha")), tuple(r for r, _ in header["radii"]))
    if row["radius"] not in how.goals or draws not in how.looks:
        yield f"{start} after {draws:,} draws, which is none of the radii and looks of the header"
        return
    place, goal = how.looks.index(draws), how.goals.index(row["radius"])
    disagreed, tested = draws - agreed, len(how.goals) if row["top"] == row["label"] else 1
    held = goal + 1 if row["prediction"] != ABSTAIN else 0
    if held == tested and disagreed > how.proving[held - 1][place]:
        yield f"{start}, but {disagreed:,} of {draws:,} draws disagree: too many to prove it"
    if held < tested and disagreed <= how.proving[held][place]:
        yield f"{start}, but {disagreed:,} of {draws:,} draws disagree: few enough to prove {how.goals[held]:.4g}"


@cache
def _smoothing(sigma: float, n0: int, n: int, alpha: float, radii: tuple[float, ...]) -> Smoothing:
    return Smoothing(sigma, n0, n, alpha, radii)


def _bracket(header: Mapping[str, Any], row: BracketRow) -> Iterator[str]:
    """A broken point lies within its radius, and its counts reject the label at level alpha."""
    for one in row["tested"]:
        rival, label = (one["counts"].get(str(k), 0) for k in (one["rival"], row["label"]))
        if one["size"] > one["radius"] + 10 * TOLERANCE * max(1.0, one["radius"]):
            yield f"image {row['index']}: a point of size {one['size']:g}, outside the radius {one['radius']:g}"
        if one["broken"] and lead_chance(rival, label) > header["alpha"]:
            counted = f"the rival class has {rival} draws and the label {label}"
            yield f"image {row['index']}: broken at {one['radius']:g}, but {counted}"
