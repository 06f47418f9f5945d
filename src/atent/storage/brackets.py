"""Rows of attacked smoothed networks: with the certificates of the same images they bracket the robust accuracy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from atent.errors import UserError
from atent.methods import Count, Scale, Size, Whole
from atent.storage.certificates import CERTIFY, Certified, CertifyHeader, read_certified, right
from atent.storage.row_file import RowFile, finished_files, leave_out
from atent.storage.row_format import Content, Cost, Indexed, Kind
from atent.storage.rows import Rate, rate


class BracketHeader(CertifyHeader):
    """The settings of the certificates, the name of their file, and the attack on the network with its draws."""

    certificates: str
    attack: dict[str, Any]
    smooth: Size
    draws: Count


@with_config(ConfigDict(extra="forbid"))
class PointRow(TypedDict):
    """A point within `radius` at a distance of `size`, the rival class, its counts, and whether it is broken."""

    radius: Scale
    size: Scale
    rival: Whole
    counts: dict[str, Whole]
    broken: bool


@with_config(ConfigDict(extra="forbid"))
class BracketRow(Indexed):
    """One attacked image: its label, the points tested from the largest radius down, and the draws used."""

    label: Whole
    tested: list[PointRow]
    draws: Count


BRACKET = Kind("certify", TypeAdapter(BracketHeader), TypeAdapter(BracketRow), own_folder="bracket")


def smallest_broken(row: BracketRow, radius: float) -> float | None:
    """The size of the smallest perturbation within the radius that is broken; None if there is none."""
    sizes = [one["size"] for one in row["tested"] if one["broken"] and min(one["radius"], one["size"]) <= radius]
    return min(sizes, default=None)


class Shares(NamedTuple):
    """The shares of images at one radius: `open` are those neither certified nor broken."""

    certified: Rate
    open: Rate
    broken: Rate
    unbroken: Rate


class Bracket(NamedTuple):
    """A file of rows, and the certificates of the same images."""

    certified: Certified
    path: Path
    header: dict[str, Any]
    rows: list[BracketRow]
    cost: Cost
    verified: bool

    @property
    def radii(self) -> list[float]:
        return sorted({radius for radius, _ in self.certified.radii})

    def _outcomes(self, radius: float) -> list[tuple[bool, bool]]:
        """For each image, whether it is certified and whether it is broken."""
        return [
            (right(proven) and proven["radius"] >= radius, smallest_broken(row, radius) is not None)
            for proven, row in zip(self.certified.rows, self.rows, strict=True)
        ]

    def shares(self, radius: float) -> Shares:
        """The shares of images that are certified, open and broken at this radius."""
        outcomes = self._outcomes(radius)
        return Shares(
            certified=rate(proven for proven, _ in outcomes),
            open=rate(not proven and not broken for proven, broken in outcomes),
            broken=rate(broken for _, broken in outcomes),
            unbroken=rate(not broken for _, broken in outcomes),
        )

    @property
    def overlaps(self) -> int:
        """The number of images that are certified and broken at one radius, or at several."""
        return sum(
            map(any, zip(*([all(both) for both in self._outcomes(radius)] for radius in self.radii), strict=True))
        )

    @property
    def expected_overlaps(self) -> float:
        """The most that are expected: 2 alpha per image, alpha for its certificate and alpha for its tests."""
        return 2 * float(self.header["alpha"]) * len(self.rows)


def read_bracket(path: Path) -> Bracket:
    return _bracket(path, RowFile(BRACKET, path).read())


def brackets(folder: Path, report: Callable[[str], None] = leave_out) -> list[Bracket]:
    """Every finished bracket of a run folder. One without its certificates is skipped and passed to `report`."""
    found = []
    for path, content in finished_files(BRACKET, folder, report):
        try:
            found.append(_bracket(path, content))
        except UserError as error:
            report(f"{path}: {error}")
    return found


def _bracket(path: Path, found: Content[BracketRow]) -> Bracket:
    certificates = path.resolve().parent.parent / CERTIFY.folder / Path(found.header["certificates"]).name
    return Bracket(read_certified(certificates), path, found.header, found.rows, found.cost, found.verified)
