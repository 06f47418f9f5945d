"""Accuracy under attack, one row per image: every point that an attack returns is checked and classified here."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atent.attacks import Attack, Cascade, MinimalAttack
from atent.attacks.cascade import Staged
from atent.attacks.protocols import PerImage, title_of
from atent.data.images import Images, evaluation_batches
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.inputs import check_points, checked
from atent.machine import release_freed_memory
from atent.network import borrowed, counted, predict
from atent.parallel.order import in_order, turns
from atent.parallel.team import current_team
from atent.randomness import derive
from atent.report.figures import draw_sheet, save_picture
from atent.smoothing.smoothed import Smoothed
from atent.storage.points import forget_points, join_points, keep_points, points_kept
from atent.storage.record import Batches, record
from atent.storage.row_format import Cost
from atent.storage.rows import ATTACK, Row
from atent.threat import Threat

BATCH = 250
PART = 25  # images that are saved at once, where there are fewer than a batch and each draws its own numbers


class Attacked(NamedTuple):
    """An attacked batch: the rows, their cost, the images and the points."""

    rows: list[Row]
    cost: Cost
    x: Tensor
    x_adv: Tensor


def attack_images(
    model: nn.Module,
    images: Images,
    attack: Attack,
    threat: Threat | str,
    *,
    seed: int = 0,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
) -> Iterator[list[Row]]:
    """Attack all images, a list of rows per batch. Generators are those of `attack_batch`.

    The processes of a team attack in turn, and each yields all rows.
    """
    team, parts = current_team(), list(evaluation_batches(len(images), batch))
    attack_one = partial(attack_batch, model, images, attack=attack, threat=threat, seed=seed, device=device)
    mine = ([attack_one(part).rows] for part in turns(team, parts))
    yield from chain.from_iterable(in_order(team, mine))


def attack_batch(
    model: nn.Module,
    images: Images,
    part: slice | Sequence[int],
    attack: Attack,
    threat: Threat | str,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Attacked:
    """Attack a batch of images and classify the points, with the model in eval mode; it is unchanged afterwards.

    A `PerImage` attack draws for each image from a generator that depends on the image's index alone; any other draws
    from one that depends on the first index of the batch. A `MinimalAttack` is evaluated at its nearest point: the
    image is robust unless that is within the threat's radius. A smoothed network draws the same noise for every batch,
    and its cost is counted in passes of the network inside.
    """
    threat = Threat.parse(threat)
    indices = range(len(images))[part] if isinstance(part, slice) else list(part)
    x, y = images.batch(part if isinstance(part, slice) else torch.tensor(indices), device)
    inside = model
    if isinstance(model, Smoothed):
        model.rewind()
        inside = model.network
    with borrowed(model), checked(model, x, y, threat):
        clean = predict(model, x)
        began = time.perf_counter()
        with counted(inside) as passes:
            x_adv, by, seen = _search(attack, model, x.clone(), y.clone(), threat, indices, seed)
        seconds = round(time.perf_counter() - began, 3)
    minimal = isinstance(attack, MinimalAttack)
    size, near = check_points(x_adv, x, threat, partial(title_of, attack), indices, minimal)
    with borrowed(model):  # again: a user's attack may have left it in another mode
        adversarial = predict(model, x_adv)
    adversarial = torch.where(seen >= 0, seen, adversarial)
    found = (adversarial != y).cpu()
    robust = (clean == y).cpu() & ~(found & near)
    columns = (indices, y.tolist(), clean.tolist(), adversarial.tolist(), size.tolist(), robust.tolist())
    rows = [
        Row(index=i, label=a, clean=b, adversarial=c, size=round(d, 6), robust=e)
        for i, a, b, c, d, e in zip(*columns, strict=True)
    ]
    if minimal:
        for row in rows:
            row["distance"] = row["size"] if row["adversarial"] != row["label"] else None
    for row, title in zip(rows, by, strict=False):
        row["by"] = None if row["robust"] else title
    release_freed_memory()
    return Attacked(rows, Cost(passes.forward, passes.backward, seconds), x, x_adv)


def _search(
    attack: Attack, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, indices: Sequence[int], seed: int
) -> Staged:
    """The attack's points and, of a cascade, what broke each image."""
    if isinstance(attack, PerImage):
        generators = [derive(seed, "attack", "image", index, device=x.device) for index in indices]
        if isinstance(attack, Cascade):
            return attack.staged(model, x, y, threat, generators)
        points = attack.each(model, x, y, threat, generators)
    else:
        generator = derive(seed, "attack", indices[0], device=x.device)
        points = (attack.nearest if isinstance(attack, MinimalAttack) else attack)(model, x, y, threat, generator)
    return Staged(points, [], torch.full_like(y, -1))


def attack_target(
    target: Target,
    planned: Planned,
    folder: Path,
    *,
    seed: int = 0,
    batch: int | None = None,
    device: torch.device | str = "cpu",
    save_images: bool = False,
) -> Path:
    """Attack every image of the target, one row per image in `folder`/attack; rows that are there are kept.

    Of fewer images than a batch, a `PerImage` attack attacks and saves 25 at a time. With `save_images` the points are
    saved too, a file per batch until all are there; batches that have rows but no points are attacked again.
    """
    batch = batch or BATCH
    attack, threat, title = planned.attack, planned.threat, f"{planned.title} {planned.threat}"
    alike = isinstance(attack, PerImage) and not isinstance(target.network, Smoothed)  # in batches of any size
    saved = min(batch, PART) if alike and len(target.images) < batch else batch
    settings = {
        "label": planned.title,
        "attack": planned.settings,
        "threat": str(threat),
        "batch": batch,
    }

    def left(path: Path, done: int) -> list[int]:
        """The first image of each batch that lacks rows or points."""
        if done < len(target.images):
            forget_points(path, done)
        firsts = range(0, len(target.images), saved)
        return [k for k in firsts if k >= done or (save_images and not points_kept(path, k))]

    def attacked(path: Path, firsts: Sequence[int]) -> Iterator[list[tuple[list[Row], Cost]]]:
        for first in firsts:
            part = slice(first, min(first + saved, len(target.images)))
            found = attack_batch(target.network, target.images, part, attack, threat, seed=seed, device=device)
            if save_images:  # before the rows: after a kill between the two, the batch is attacked again
                keep_points(path, found.rows, found.x, found.x_adv)
            yield [(found.rows, found.cost)]

    def work(path: Path, done: int) -> Batches:
        team = current_team()
        mine = attacked(path, turns(team, team.first(left(path, done) if team.leads else [])))
        for rows, cost in chain.from_iterable(in_order(team, mine)):
            yield (rows if rows[0]["index"] >= done else []), Cost(*cost)
        if save_images and team.leads:
            sheet = draw_sheet(join_points(path), f"{title}, {target.data} test images", target.images.classes)
            save_picture(sheet, path.with_suffix(".png"))

    return record(ATTACK, folder, target.header(settings, seed), title, work)
