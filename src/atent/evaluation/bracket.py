"""Robust accuracy of a smoothed network from both sides: its certificates, and points at which it is misclassified."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atent.attacks import Attack
from atent.attacks.protocols import Selective, Thorough, title_of
from atent.errors import UserError
from atent.evaluation.certify import check_deterministic
from atent.evaluation.target import Target
from atent.inputs import check_points, checked
from atent.methods import written_out
from atent.network import answers, borrowed, counted
from atent.parallel.order import in_order, turns
from atent.parallel.team import current_team
from atent.randomness import derive
from atent.report.figures import draw_curve, save_picture
from atent.smoothing.counting import run_cases
from atent.smoothing.rival import Challenge, Verdict
from atent.smoothing.smoothed import PIXELS, Smoothed
from atent.smoothing.stopping import Smoothing
from atent.storage.brackets import BRACKET, read_bracket
from atent.storage.certificates import curve, read_certified
from atent.storage.record import Batches, Costly, record, summed, with_cost
from atent.storage.row_format import Cost
from atent.threat import Threat

DRAWS = 64  # of the noise, in each pass of an attack


@dataclass(frozen=True)
class Picture:
    """An image with its index in the test set and its label."""

    index: int
    image: Tensor
    label: int


def check_attack(attack: Attack, smoothed: Smoothed, radius: float) -> None:
    """Refuse an attack that is not defined for l2, or not for smoothed networks."""
    if isinstance(attack, Selective):
        attack.check(smoothed, Threat("l2", radius))


def find_broken(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    radii: Sequence[float],
    how: Smoothing,
    attack: Attack,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    batch: int = 1000,
) -> list[list[Verdict]]:
    """For each image the points that were tested, from the largest radius down. The attack uses so many `draws`.

    For one image, the probability that any point is called broken where the smoothed network predicts the label is at
    most alpha. An image is broken at every radius from the `size` of a broken point on.
    """
    smoothed = Smoothed(network, how.sigma, draws)
    check_attack(attack, smoothed, max(radii))
    with checked(network, x, y, PIXELS), borrowed(network):
        answers(network, x[:1])  # the shape of its logits gives the number of classes
    pictures = [Picture(k, image, int(label)) for k, (image, label) in enumerate(zip(x, y, strict=True))]
    challenges = _challenges(smoothed, pictures, radii, how, attack, seed)
    return [case.tested for some in run_cases(network, challenges, how.sigma, seed, batch) for case in some]


def _challenges(
    smoothed: Smoothed, pictures: Iterable[Picture], radii: Sequence[float], how: Smoothing, attack: Attack, seed: int
) -> Iterator[Challenge]:
    """Each image is attacked alone, with a generator of its own, so its points do not depend on the others."""
    for one in pictures:
        yield Challenge(one.index, one.label, radii, how, partial(_find, smoothed, one, attack, seed))


def _find(smoothed: Smoothed, one: Picture, attack: Attack, seed: int, radius: float) -> tuple[Tensor, float]:
    """A point within the radius of an image, and its distance."""
    if radius == 0:
        return one.image, 0.0
    threat, x = Threat("l2", radius), one.image[None]
    y = torch.tensor([one.label], device=x.device)
    generator = derive(seed, "bracket", one.index, repr(radius), device=x.device)
    move = attack.search_all if isinstance(attack, Thorough) else attack
    smoothed.rewind()
    with borrowed(smoothed):
        point = move(smoothed, x.clone(), y, threat, generator)
    size, _ = check_points(point, x, threat, partial(title_of, attack), [one.index])
    return point[0].detach(), float(size)


def bracket_target(
    target: Target,
    certificates: Path,
    attack: Attack,
    settings: Mapping[str, Any],
    *,
    draws: int = DRAWS,
    batch: int = 1000,
    device: torch.device | str = "cpu",
) -> Path:
    """Attack every image of the target that `certificates` (a file of `certify_target`) are of, at the same radii.

    The rows are kept in the folder `bracket` next to the folder of the certificates; what is there already is not done
    again. `settings` is the table {"name": ..., field: value} that the attack was made of. The attack gets a `Smoothed`
    network with so many `draws`.
    """
    one = read_certified(certificates)
    _check_same(target, one.header)
    check_deterministic(target.network, target.images, device)
    radii = sorted({radius for radius, _ in one.radii})
    known = {key: one.header[key] for key in ("sigma", "n0", "n", "alpha")}
    how = Smoothing(**known, radii=None if one.exact else tuple(radii))
    smoothed = Smoothed(target.network, how.sigma, draws)
    check_attack(attack, smoothed, max(radii))
    label = f"{title_of(attack, str(settings['name']))}, {draws} draws"
    kept = ("exact", "radii", "block", "every")
    header = replace(target, network=smoothed).header(
        {"label": label, "certificates": certificates.name, "attack": written_out(settings, attack), **known}
        | {key: one.header[key] for key in kept if key in one.header},
        one.header["seed"],
    )

    def tested(places: Sequence[int]) -> Iterator[list[Costly]]:
        began = time.perf_counter()
        pictures = _pictures(target, one.header.get("every", 1), places, device)
        with counted(smoothed.network) as passes:
            challenges = _challenges(smoothed, pictures, radii, how, attack, header["seed"])
            for finished in run_cases(smoothed.network, challenges, how.sigma, header["seed"], batch):
                now = time.perf_counter()
                cost = Cost(passes.forward, passes.backward, round(now - began, 3))
                yield with_cost([_row(case) for case in finished], cost)
                if finished:
                    began, passes.forward, passes.backward = now, 0, 0

    def work(_: Path, done: int) -> Batches:
        team = current_team()
        yield from map(summed, in_order(team, tested(turns(team, range(done, len(target.images))))))

    path = record(BRACKET, certificates.parent.parent, header, f"attack sigma {how.sigma:g}", work)
    found = read_bracket(path)
    shares = [(radius, found.shares(radius)) for radius in radii]
    title = f"{target.data}, {len(target.images):,} test images: sigma {how.sigma:g}, {label}"
    lower = [(radius, share.certified) for radius, share in shares]
    upper = [(radius, share.unbroken) for radius, share in shares]
    if current_team().leads:
        save_picture(draw_curve(curve(found.certified), lower, title, upper), path.with_suffix(".png"))
    return path


def _check_same(target: Target, header: Mapping[str, Any]) -> None:
    """Refuse certificates of another network or of other images."""
    ours = (target.weights, target.data, len(target.images))
    theirs = (header["weights"], header["data"], header["examples"])
    if ours != theirs:
        raise UserError(
            f"certificates of weights {theirs[0][:8]}, {theirs[2]:,} images of {theirs[1]}; "
            f"allowed: those of the target, weights {ours[0][:8]}, {ours[2]:,} images of {ours[1]}"
        )


def _pictures(target: Target, every: int, places: Sequence[int], device: torch.device | str) -> Iterator[Picture]:
    for k in places:
        x, y = target.images.batch(slice(k, k + 1), device)
        yield Picture(k * every, x[0], int(y[0]))


def _row(case: Challenge) -> dict[str, Any]:
    tested = [one._asdict() | {"counts": {str(k): count for k, count in one.counts.items()}} for one in case.tested]
    return {"index": case.index, "label": case.label, "tested": tested, "draws": case.draws}
