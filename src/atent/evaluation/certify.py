"""Certify a smoothed network: a file with one row per image, as `attack` writes for attacks."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.target import Target
from atent.network import borrowed, repeat
from atent.parallel.order import in_order, turns
from atent.parallel.team import current_team
from atent.report.figures import draw_curve, save_picture
from atent.smoothing.bounds import as_row, draws_for, l2_radius
from atent.smoothing.counting import Trial, run_cases
from atent.smoothing.stopping import BLOCK, Smoothing
from atent.storage.certificates import CERTIFY, curve, read_certified
from atent.storage.record import Batches, Costly, record, summed, with_cost
from atent.storage.row_format import Cost
from atent.threat import Threat


def named_radii(radii: Sequence[float], threats: Sequence[Threat | str], pixels: int | None) -> list[tuple[float, str]]:
    """Each radius of interest with the threat that it covers, sorted; a linf ball is covered by an l2 ball."""
    found = [(float(radius), "") for radius in radii]
    found += [(l2_radius(threat, pixels), str(threat)) for threat in map(Threat.parse, threats)]
    return sorted(dict.fromkeys(found))


def plan_certificates(
    plain: Smoothing, asked: Sequence[float], threats: Sequence[Threat], image: tuple[int, int, int], exact: bool
) -> tuple[Smoothing, list[tuple[float, str]]]:
    """The settings with the radii of interest, and these radii with the threats that they cover.

    Radius 0 is always among them. Without any radius or threat: every .25 that can be proven, at most a hundred.
    `exact`: all draws for every image (Cohen et al.).
    """
    if not asked and not threats:
        step = max(0.25, plain.largest_radius / 100)
        asked = [step * k for k in range(101) if draws_for(step * k, plain.sigma, plain.alpha) <= plain.n]
    radii = named_radii([0.0, *asked], threats, math.prod(image))
    plain.check_radii([radius for radius, _ in radii])
    return replace(plain, radii=None if exact else tuple(radius for radius, _ in radii)), radii


def doubts_about(sigma: float) -> list[str]:
    """A sentence if the noise is larger than it can be meant."""
    return [f"pixels are in [0, 1], so noise of sigma {sigma:g} hides most of the image"] if sigma > 1 else []


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
    """Certify every image of the target, with one row each in `folder`/certify; finished rows are kept.

    The images of the target are every `every`-th of the test set; a row has the index in the test set.
    """
    check_deterministic(target.network, target.images, device)
    settings = {
        "label": f"certify sigma {how.sigma:g}{' exact' if how.radii is None else ''}",
        "sigma": how.sigma,
        "n0": how.n0,
        "n": how.n,
        "alpha": how.alpha,
        "exact": how.radii is None,
        "radii": [list(pair) for pair in radii],
        "block": BLOCK,
        "every": every,
    }  # without the batch size: it changes only the rounding in the network

    def certified(places: Sequence[int]) -> Iterator[list[Costly]]:
        began = time.perf_counter()
        trials = _trials(target.images, how, every, places, device)
        for finished in run_cases(target.network, trials, how.sigma, seed, batch):
            rows = [{"index": t.index, "label": t.label, **as_row(t.certificate)} for t in finished]
            now = time.perf_counter()
            yield with_cost(rows, Cost(sum(row["draws"] for row in rows), 0, round(now - began, 3)))
            began = now if rows else began

    def work(_: Path, done: int) -> Batches:
        team = current_team()
        yield from map(summed, in_order(team, certified(turns(team, range(done, len(target.images))))))

    path = record(CERTIFY, folder, target.header(settings, seed), str(settings["label"]), work)
    one = read_certified(path)
    asked = [(radius, one.accuracy(radius)) for radius, _ in one.radii]
    title = f"{target.data}, {len(target.images):,} test images: sigma {how.sigma:g}, n {how.n:,}, alpha {how.alpha:g}"
    if current_team().leads:
        save_picture(draw_curve(curve(one), asked, title), path.with_suffix(".png"))
    return path


def _trials(
    images: Images, how: Smoothing, every: int, places: Sequence[int], device: torch.device | str
) -> Iterator[Trial]:
    for k in places:
        x, y = images.batch(slice(k, k + 1), device)
        yield Trial(k * every, x[0], how, int(y[0]))


def check_deterministic(network: nn.Module, images: Images, device: torch.device | str = "cpu") -> None:
    """Refuse a randomized network: certificates need predictions whose only randomness is the noise."""
    x, _ = images.batch(slice(16), device)
    with borrowed(network):
        if repeat(network, x).change > 0:  # bit for bit, since the proof depends on it
            raise UserError(
                "two passes over the same images differ: the network is randomized, or smoothed already; smoothing "
                "certifies only networks whose prediction depends on nothing but the image"
            )
