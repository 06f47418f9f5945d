"""Saved points against the images, the threat and the network; predictions made again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atent.data.images import Images, evaluation_batches
from atent.network import ROUNDING, answers, borrowed
from atent.smoothing.smoothed import Smoothed
from atent.storage.rows import Row
from atent.threat import Threat
from atent.verification.rows import shown

BATCH = 250
FIELDS = {"y": "label", "clean": "clean", "adversarial": "adversarial", "robust": "robust"}


def label_faults(images: Images, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each label is that of the test image."""
    if beyond := [row["index"] for row in rows if row["index"] >= len(images)]:
        yield f"image {beyond[0]}: the test set has {len(images):,} images"
        return
    wrong = ((row, int(images.y[row["index"]])) for row in rows)
    yield from shown(
        f"image {row['index']}: label {row['label']}, but that of the test image is {label}"
        for row, label in wrong
        if row["label"] != label
    )


def prediction_faults(
    network: nn.Module, x: Tensor, rows: Sequence[Row], field: str, batch: int = BATCH
) -> Iterator[str]:
    """The network predicts again what the rows state, except where two logits are equal up to rounding."""
    place = {"clean": "without an attack", "adversarial": "at the saved point"}[field]
    with borrowed(network):
        for part in evaluation_batches(len(rows), batch):
            if isinstance(network, Smoothed):
                network.rewind()
            logits = answers(network, x[part]).cpu()
            stated = torch.tensor([row[field] for row in rows[part]])  # type: ignore[literal-required]
            for k in (logits.argmax(1) != stated).nonzero()[:, 0].tolist():
                claim, found = int(stated[k]), int(logits[k].argmax())
                gap = float(logits[k].max() - logits[k][claim]) if claim < logits.shape[1] else float("inf")
                if gap > ROUNDING * float(logits[k].abs().max()):
                    index = rows[part.start + k]["index"]
                    yield f"image {index}: predicted {claim} {place}, but the network predicts {found}"


def point_faults(
    points: Mapping[str, NDArray[Any]], images: Images, rows: Sequence[Row], threat: Threat
) -> Iterator[str]:
    """The saved images are the test images, the points lie inside the threat, and both are those of the rows."""
    if points["index"].tolist() != [row["index"] for row in rows]:
        yield f"it has {len(points['index']):,} images, which are not those of the {len(rows):,} rows"
        return
    x, _ = images.batch(torch.tensor([row["index"] for row in rows]))
    if tuple(points["x"].shape) != tuple(x.shape):
        yield f"images of shape {points['x'].shape[1:]}, but the test images have {tuple(x.shape[1:])}"
        return
    saved, moved = torch.from_numpy(points["x"]).to(x.dtype), torch.from_numpy(points["x_adv"]).to(x.dtype)
    other = (saved != x).flatten(1).any(1).tolist()
    yield from shown(f"image {rows[k]['index']}: not the test image" for k in np.flatnonzero(other).tolist())
    size, near, boxed = threat.measure(moved, x)
    yield from shown(_outside(threat, rows, size, near, boxed))
    yield from shown(
        f"image {row['index']}: the row has {field} {row[field]}, the saved one {points[key][k]}"  # type: ignore[literal-required]
        for key, field in FIELDS.items()
        for k, row in enumerate(rows)
        if bool(points[key][k] != row[field])  # type: ignore[literal-required]
    )


def _outside(threat: Threat, rows: Sequence[Row], size: Tensor, near: Tensor, boxed: Tensor) -> Iterator[str]:
    for k, row in enumerate(rows):
        found = f"image {row['index']}: a point of size {float(size[k]):.6g}"
        minimal = "distance" in row and row["robust"]  # its nearest point may be farther away
        if not boxed[k]:
            yield f"{found}, outside the pixel box {threat.box}"
        elif not (near[k] or minimal):
            yield f"{found}, outside {threat}"
        elif abs(float(size[k]) - row["size"]) > 1e-5 * max(1.0, row["size"]):
            yield f"{found}, but the row has {row['size']:g}"
