"""Certified accuracy of a smoothed network: a row per image in a file, as `evaluate` keeps them for attacks."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import torch
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from torch import nn

from atent import __version__
from atent.borrow import borrowed
from atent.certificate import ABSTAIN, BLOCK, Smoothing, as_row, l2_radius
from atent.errors import Interrupted, UserError
from atent.fields import Count, Fraction, Scale, Size, Whole
from atent.images import Images
from atent.passes import answers
from atent.plot import draw_curve, save_picture
from atent.progress import progress, stop_requests
from atent.row_file import RowFile, finished_files, leave_out
from atent.row_format import Content, Cost, Header, Indexed, Kind
from atent.rows import Rate, rate
from atent.runs import alone
from atent.smoothing import Trial, refuse_randomized, work_off
from atent.target import Target
from atent.threat import Threat


class CertifyHeader(Header):
    """What decides the rows of a certification."""

    sigma: Size
    n0: Count
    n: Count
    alpha: Fraction
    exact: bool
    radii: list[tuple[Scale, str]]
    block: NotRequired[Count]
    split: NotRequired[str]
    seed: NotRequired[int]


@with_config(ConfigDict(extra="forbid"))
class CertifiedRow(Indexed):
    """One certified image: its label, the class or ABSTAIN, the radius proven, and the draws that it took."""

    label: Whole
    prediction: Annotated[int, Field(ge=ABSTAIN)]
    radius: Scale
    top: Whole
    counts: dict[str, Whole]
    draws: Count


CERTIFY = Kind("certify", TypeAdapter(CertifyHeader), TypeAdapter(CertifiedRow))


class Certified(NamedTuple):
    """A file of rows: a network certified on images, at radii that were asked for, some of which stand for threats."""

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
        """The share of images that are right, and proven to stay so within the radius."""
        return rate(right(row) and row["radius"] >= radius for row in self.rows)

    @property
    def abstained(self) -> Rate:
        return rate(row["prediction"] == ABSTAIN for row in self.rows)

    @property
    def mean_radius(self) -> float:
        """The average certified radius, an image that is wrong or abstained from counting 0 (ACR)."""
        return float(sum(row["radius"] for row in self.rows if right(row))) / len(self.rows)

    @property
    def mean_draws(self) -> float:
        return float(sum(row["draws"] for row in self.rows)) / len(self.rows)


def right(row: CertifiedRow) -> bool:
    return row["prediction"] == row["label"]


def named_radii(radii: Sequence[float], threats: Sequence[Threat | str], pixels: int | None) -> list[tuple[float, str]]:
    """Each radius of interest, with the threat that it covers, in order; a linf ball is covered by an l2 one."""
    found = [(float(radius), "") for radius in radii]
    found += [(l2_radius(threat, pixels), str(threat)) for threat in map(Threat.parse, threats)]
    return sorted(dict.fromkeys(found))


def certify_target(
    target: Target,
    how: Smoothing,
    radii: Sequence[tuple[float, str]],
    folder: Path,
    *,
    every: int = 1,
    seed: int = 0,
    batch: int = 1000,
    device: torch.device | str = "cpu",
) -> Path:
    """Certify every image of the target, a row each in `folder`/certify; what is there already is not done again.

    The target's images are every `every`-th of the test set; rows keep the test set's index.
    """
    check_deterministic(target.network, target.images, device)
    header = make_header(target, how, radii, every=every, seed=seed)
    file = RowFile.of(CERTIFY, folder, header)
    path, total = file.path, len(target.images)
    with alone(path):
        done = file.resume(header)
        trials = _trials(target.images, how, every, done, device)
        began = time.perf_counter()
        with stop_requests() as stop, progress(header["label"], total, "images", done) as show:
            for finished in work_off(target.network, trials, how.sigma, seed, batch):
                if finished:
                    rows = [{"index": t.index, "label": t.label, **as_row(t.certificate)} for t in finished]
                    began, seconds = time.perf_counter(), time.perf_counter() - began
                    file.append(rows, Cost(sum(row["draws"] for row in rows), 0, round(seconds, 3)))
                    done += len(rows)
                    show(done)
                if stop:
                    raise Interrupted(stop[0])
    one = read_certified(path)
    asked = [(radius, one.accuracy(radius)) for radius, _ in one.radii]
    title = f"{target.data}, {total:,} test images: sigma {how.sigma:g}, n {how.n:,}, alpha {how.alpha:g}"
    save_picture(draw_curve(curve(one), asked, title), path.with_suffix(".png"))
    return path


def _trials(images: Images, how: Smoothing, every: int, skip: int, device: torch.device | str) -> Iterator[Trial]:
    for k in range(skip, len(images)):
        x, y = images.batch(slice(k, k + 1), device)
        yield Trial(k * every, x[0], how, int(y[0]))


def check_deterministic(network: nn.Module, images: Images, device: torch.device | str = "cpu") -> None:
    """Refuse a network that is randomized already: its answers would not be those of the noise alone."""
    refuse_randomized(network)
    x, _ = images.batch(slice(16), device)
    with borrowed(network):
        if not torch.equal(answers(network, x), answers(network, x)):  # bit for bit: a proof rests on it
            raise UserError(
                "two passes over the same images differ: the network is randomized already; smoothing certifies "
                "networks whose answer depends on the image alone"
            )


def make_header(
    target: Target, how: Smoothing, radii: Sequence[tuple[float, str]], *, every: int, seed: int
) -> dict[str, Any]:
    """Everything that decides the rows. The batch size is not in it: it changes nothing but the network's rounding."""
    exact = how.radii is None
    header = {
        "label": f"certify sigma {how.sigma:g}{' exact' if exact else ''}",
        "sigma": how.sigma,
        "n0": how.n0,
        "n": how.n,
        "alpha": how.alpha,
        "exact": exact,
        "radii": [list(pair) for pair in radii],
        "block": BLOCK,
        "data": target.data,
        "split": "test",
        "examples": len(target.images),
        "every": every,
        "seed": seed,
        "model": target.model,
        "weights": target.weights,
        "version": __version__,
        "classes": target.images.classes,
    }
    if target.digest:
        header["images"] = target.digest
    return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # as it will be read: tuples become lists


def read_certified(path: Path) -> Certified:
    return _certified(path, RowFile(CERTIFY, path).read())


def certified(folder: Path, say: Callable[[str], None] = leave_out) -> list[Certified]:
    """Every finished certification of a run folder. One that is damaged or unfinished is left out, and named."""
    return [_certified(path, found) for path, found in finished_files(CERTIFY, folder, say)]


def _certified(path: Path, found: Content[CertifiedRow]) -> Certified:
    return Certified(path.resolve().parent.parent.name, path, found.header, found.rows, found.cost, found.verified)


def curve(one: Certified) -> list[tuple[float, float]]:
    """Certified accuracy against radius: where it was asked for or, if each image's own radius is known, all of it."""
    if not one.exact:
        return [(radius, one.accuracy(radius).value) for radius, _ in one.radii]
    radii = sorted(row["radius"] for row in one.rows if right(row))
    steps = [(radius, (len(radii) - k) / len(one.rows)) for k, radius in enumerate(radii)]
    return [(0.0, len(radii) / len(one.rows)), *steps]
