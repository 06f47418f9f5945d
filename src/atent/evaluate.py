"""Accuracy under attack, example by example: every returned point is checked and classified by us."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from atent.attacks import Attack
from atent.borrow import borrowed
from atent.errors import Interrupted, UserError
from atent.images import Images, evaluation_batches
from atent.progress import progress, stop_requests
from atent.randomness import derive
from atent.runs import alone, read_rows, write_rows
from atent.target import Target
from atent.threat import Threat

TOLERANCE = 1e-6  # rounding of float32 pixels near 1 is 6e-8


class Row(TypedDict):
    """One attacked example: what the network said of x and of x_adv, and how far x_adv is."""

    index: int
    label: int
    clean: int
    adversarial: int
    size: float
    robust: bool


class Rate(NamedTuple):
    """A share of examples with its 95 % Wilson interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def rate(hits: Iterable[bool]) -> Rate:
    """The share of hits, with its Wilson interval."""
    values = list(hits)
    return rate_of(sum(values) / len(values), len(values))


def rate_of(share: float, count: int) -> Rate:
    """A share of `count` examples, with its Wilson interval."""
    interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return Rate(share, float(interval.low), float(interval.high))


def clean_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["clean"] == row["label"] for row in rows)


def robust_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["robust"] for row in rows)


def attack_images(
    model: nn.Module,
    images: Images,
    attack: Attack,
    threat: Threat,
    *,
    seed: int = 0,
    batch: int = 250,
    skip: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[list[Row]]:
    """Attack image after image, a list of rows per batch. The generator depends on the batch's place alone."""
    for part in evaluation_batches(len(images), batch, skip):
        x, y = images.batch(part, device)
        generator = derive(seed, "attack", part.start, device=device)
        with borrowed(model):
            clean = predict(model, x)
            x_adv = attack(model, x, y, threat, generator)
            size = check_inside(x_adv, x, threat, type(attack).__name__, part.start)
            adversarial = predict(model, x_adv)
        robust = (clean == y) & (adversarial == y)
        columns = (y.tolist(), clean.tolist(), adversarial.tolist(), size.tolist(), robust.tolist())
        yield [
            Row(index=part.start + i, label=a, clean=b, adversarial=c, size=round(d, 6), robust=e)
            for i, (a, b, c, d, e) in enumerate(zip(*columns, strict=True))
        ]


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """The class of each image; a network that says NaN or the wrong shape is refused."""
    logits = model(x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returned {shape} for {len(x)} images; expected logits of shape ({len(x)}, classes)")
    if not logits.isfinite().all():
        raise UserError("the model returned NaN or infinite logits")
    return logits.argmax(1)


def check_inside(x_adv: Tensor, x: Tensor, threat: Threat, who: str, first: int = 0) -> Tensor:
    """The size of each perturbation; a point outside the ball or the box, or not finite, is an error."""
    x_adv, x = x_adv.cpu().double(), x.cpu().double()  # some devices have no doubles
    size = threat.size(x_adv - x)
    low, high = threat.box
    inside = ((x_adv >= low - TOLERANCE) & (x_adv <= high + TOLERANCE)).flatten(1).all(1)
    bad = ~(inside & (size <= threat.eps + slack(threat, x[0].numel())))  # NaN compares false
    if bad.any():
        k = int(bad.nonzero()[0])
        raise UserError(f"{who} returned a point outside {threat} for example {first + k}: size {float(size[k]):.8g}")
    return size


def slack(threat: Threat, dimension: int) -> float:
    """By how much float32 rounding may overshoot the radius: of the radius itself, and of each of the pixels."""
    return TOLERANCE * max(1.0, threat.eps) + 1e-8 * math.sqrt(dimension)


def attack_file(folder: Path, header: Mapping[str, Any]) -> Path:
    """Where the rows of an attack with these settings go: readable, and different for different settings."""
    words = re.sub(r"[^a-z0-9.]+", "-", f"{header['label']} {header['threat']} {header['data']}".lower()).strip("-")
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:8]
    return folder / "attack" / f"{words}-{digest}.jsonl"


def attack_target(
    target: Target,
    attack: Attack,
    settings: Mapping[str, Any],
    threat: Threat,
    folder: Path,
    *,
    seed: int = 0,
    batch: int = 250,
    device: torch.device | str = "cpu",
) -> Path:
    """Attack every image of the target, a row each in `folder`/attack; what is there already is not done again.

    `settings` is the table {"name": ..., field: value} that the attack was made of.
    """
    fields: dict[str, Any] = dataclasses.asdict(attack) if dataclasses.is_dataclass(attack) else {}
    header = {
        "label": getattr(attack, "label", settings["name"]),
        "attack": {**settings, **fields},
        "threat": f"{threat.norm}:{threat.eps!r}",
        "data": target.data,
        "split": "test",
        "examples": len(target.images),
        "seed": seed,
        "batch": batch,
        "model": target.model,
        "weights": target.weights,
    }
    header = json.loads(json.dumps(header))  # as it will be read again: tuples become lists
    path = attack_file(folder, header)
    with alone(path):
        done = finished_rows(path, header, batch)
        batches = attack_images(
            target.network, target.images, attack, threat, seed=seed, batch=batch, skip=done, device=device
        )
        label = f"{header['label']} {threat}"
        with stop_requests() as stop, progress(label, len(target.images), "images", done) as show:
            for count in append_rows(path, header, batches, done):
                show(count)
                if stop:
                    raise Interrupted(stop[0])
    return path


def append_rows(path: Path, header: Mapping[str, Any], batches: Iterator[list[Row]], done: int) -> Iterator[int]:
    """Append rows to a JSONL file as they come, yielding how many are there; `done` are there already."""
    if done == 0:
        write_rows(path, [header])
    with path.open("a", encoding="utf-8") as file:
        for rows in batches:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            done += len(rows)
            yield done


def finished_rows(path: Path, header: Mapping[str, Any], batch: int) -> int:
    """How many rows of this very attack are in the file; what a kill left of a batch is cut off."""
    if not path.exists():
        return 0
    found = list(read_rows(path))
    if not found or {key: found[0].get(key) for key in header} != dict(header):
        return 0
    whole = len(found) - 1
    if whole < header["examples"]:
        whole -= whole % batch
    write_rows(path, found[: whole + 1])
    return whole


def read_attack(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The header and the rows of an attack's file."""
    header, *rows = read_rows(path)
    if not {"label", "threat", "data", "examples", "weights"} <= header.keys():
        raise UserError(f"{path} is not a file of atent attack: its first line is no header")
    return header, rows  # type: ignore[return-value]
