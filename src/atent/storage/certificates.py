"""Rows of certificates, one per image, and the certified accuracies computed from them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from atent.methods import Count, Fraction, Scale, Size, Whole
from atent.smoothing.bounds import ABSTAIN
from atent.storage.row_file import RowFile, finished_files, leave_out
from atent.storage.row_format import Content, Cost, Header, Indexed, Kind
from atent.storage.rows import Rate, ThreatText, rate


class CertifyHeader(Header):
    """The settings that determine the rows of a certification."""

    sigma: Size
    n0: Count
    n: Count
    alpha: Fraction
    exact: bool
    radii: list[tuple[Scale, Literal[""] | ThreatText]]
    block: NotRequired[Count]
    split: NotRequired[str]
    seed: NotRequired[int]


def smoothing_of(header: Mapping[str, Any]) -> str:
    """How the network was smoothed and its certificates were drawn, in words."""
    half = f"; in {header['amp']}" if "amp" in header else ""
    return f"smoothed with sigma {header['sigma']:g}; n {header['n']:,}, alpha {header['alpha']:g}{half}"


@with_config(ConfigDict(extra="forbid"))
class CertifiedRow(Indexed):
    """One certified image: its label, the predicted class or ABSTAIN, the certified radius, and the draws used."""

    label: Whole
    prediction: Annotated[int, Field(ge=ABSTAIN)]
    radius: Scale
    top: Whole
    counts: dict[str, Whole]
    draws: Count


CERTIFY = Kind("certify", TypeAdapter(CertifyHeader), TypeAdapter(CertifiedRow))


class Certified(NamedTuple):
    """A file of rows: a network certified on images at the radii asked for; some radii cover a named threat."""

    run: str
    path: Path
    header: dict[str, Any]
    rows: list[CertifiedRow]
    cost: Cost
    verified: bool

    @property
    def exact(self) -> bool:
        return bool(self.header["exact"])

    @property
    def radii(self) -> list[tuple[float, str]]:
        return [(radius, str(name)) for radius, name in self.header["radii"]]

    def accuracy(self, radius: float) -> Rate:
        """The share of images that are correctly classified with a certified radius of at least `radius`."""
        return rate(right(row) and row["radius"] >= radius for row in self.rows)

    @property
    def abstained(self) -> Rate:
        return rate(row["prediction"] == ABSTAIN for row in self.rows)

    @property
    def mean_radius(self) -> float:
        """The average certified radius (ACR); a misclassified image, or one with ABSTAIN, counts as 0."""
        return float(sum(row["radius"] for row in self.rows if right(row))) / len(self.rows)

    @property
    def mean_draws(self) -> float:
        return float(sum(row["draws"] for row in self.rows)) / len(self.rows)


def right(row: CertifiedRow) -> bool:
    return row["prediction"] == row["label"]


def read_certified(path: Path) -> Certified:
    return _certified(path, RowFile(CERTIFY, path).read())


def certified(folder: Path, report: Callable[[str], None] = leave_out) -> list[Certified]:
    """Every finished certification of a run folder. A damaged or unfinished file is skipped and passed to `report`."""
    return [_certified(path, found) for path, found in finished_files(CERTIFY, folder, report)]


def _certified(path: Path, found: Content[CertifiedRow]) -> Certified:
    return Certified(path.resolve().parent.parent.name, path, found.header, found.rows, found.cost, found.verified)


def curve(one: Certified) -> list[tuple[float, float]]:
    """Certified accuracy against radius: at all radii if each image's largest is known, else at those asked for."""
    if not one.exact:
        return [(radius, one.accuracy(radius).value) for radius, _ in one.radii]
    radii = sorted(row["radius"] for row in one.rows if right(row))
    steps = [(radius, (len(radii) - k) / len(one.rows)) for k, radius in enumerate(radii)]
    return [(0.0, len(radii) / len(one.rows)), *steps]
