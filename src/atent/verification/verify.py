"""Verify a run folder: every file of rows, the weights, the images and the saved points."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from atent.errors import UserError
from atent.evaluation.estimate import draw_order
from atent.evaluation.target import Target, in_precision, smooth_target
from atent.network import borrowed, repeat
from atent.storage.disk import check_regular
from atent.storage.points import read_points
from atent.storage.removal import KINDS
from atent.storage.row_file import RowFile
from atent.storage.row_format import Content, Damage, Kind, parse
from atent.storage.rows import ATTACK
from atent.storage.run import Run
from atent.storage.samples import SAMPLE
from atent.threat import Threat
from atent.verification.points import label_faults, point_faults, prediction_faults
from atent.verification.rows import name_faults, row_faults, shown
from atent.verification.weights import OWN, Opener, named_networks, network_of, opener, weight_faults, zoo_faults
from atent.zoo.index import is_zoo


@dataclass
class Checked:
    """What was found about one file: the checks that it passed, its faults, and what could not be checked."""

    path: Path
    passed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, what: str, faults: Iterator[str]) -> bool:
        """Count a check as passed unless it has faults."""
        found = list(faults)
        self.faults += found
        self.passed += [] if found else [what]
        return not found


def verify(
    folder: Path,
    *,
    model: str | None = None,
    data_dir: Path | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> Iterator[Checked]:
    """Check every file of rows of a run folder, one after the other, and first the weights.

    The network is opened as `atent attack` opens it, also one of the zoo that rows name. Without weights or data,
    only what the rows state is checked.
    """
    files = [(kind, path) for kind in KINDS.values() for path in sorted((folder / kind.folder).glob("*.jsonl"))]
    if not files:
        raise UserError(f"{folder} has no rows to verify; expected a run folder of atent attack or certify")
    how = {"data_dir": data_dir, "device": device}
    names, opened = named_networks(path for _, path in files), dict[str, Opener]()
    own = Checked(Run(folder).best)
    if own.path.exists() and own.add("content", weight_faults(folder)):
        opened[OWN] = opener(folder, model=model, trust=trust, **how)
    elif OWN in names and not own.faults:
        own.unchecked.append("no weights in the folder, so neither their hash nor predictions can be checked")
    if own.path.exists() or OWN in names:
        yield own
    for name in sorted(names - {OWN}):
        stored = Checked(Path(name))
        if stored.add("sha256", zoo_faults(name)):
            opened[name] = opener(Path(name), **how)
        yield stored
    for kind, path in files:
        yield _verify_file(kind, path, opened, device)


def _verify_file(kind: Kind[Any], path: Path, opened: Mapping[str, Opener], device: torch.device | str) -> Checked:
    checked = Checked(path)
    try:
        content = RowFile(kind, path).read()
        if content.verified:
            checked.passed.append("checksums")
        else:
            checked.unchecked.append("rows of an older version, without checksums")
    except UserError as error:
        if (loose := _loosely(kind, path)) is None:
            checked.faults.append(str(error).removeprefix(f"{path} "))
            return checked
        content, reason = loose, str(error).removeprefix(f"{path} ").partition("; ")[0]
        (checked.unchecked if reason.startswith("is unfinished") else checked.faults).append(reason)
    checked.add("name", name_faults(path, content.header))
    checked.add("rows", row_faults(kind, content.header, content.rows))
    if kind is SAMPLE:
        checked.add("order", _order_faults(path, content, checked))
    if (network := opened.get(network_of(content.header))) is None:
        return checked
    try:
        _with_network(kind, path, content, network, checked, device)
    except UserError as error:
        checked.unchecked.append(f"labels and predictions: {error}")
    return checked


def _loosely(kind: Kind[Any], path: Path) -> Content[Any] | None:
    """The content of a damaged file with every row that can be read, so that a changed one is named."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            lines = file.readlines()
        content = parse(kind, lines)
    except (Damage, UserError, OSError):
        return None
    rows = []
    for line in lines[1:]:
        try:
            rows.append(kind.row.validate_json(line, strict=True))
        except ValueError:
            continue
    return content._replace(rows=sorted(rows, key=lambda row: row["index"]))


def _order_faults(path: Path, sample: Content[Any], checked: Checked) -> Iterator[str]:
    """A sample is drawn from the survivors of its first phase."""
    header = sample.header
    for other in sorted((path.parent.parent / ATTACK.folder).glob("*.jsonl")):
        try:
            first = RowFile(ATTACK, other).read()
        except UserError:
            continue
        same = all(first.header.get(key) == header.get(key) for key in ("weights", "data", "seed", "amp"))
        if same and first.header.get("attack") == header["first"] and _threat(first) == _threat(sample):
            survivors = [row["index"] for row in first.rows if row["robust"]]
            if draw_order(survivors, header["seed"]) != header.get("order"):
                yield f"its order is not that of the {len(survivors):,} survivors of {other.name}"
            return
    checked.unchecked.append("the order of the sample: the rows of its first phase are not there")


def _threat(content: Content[Any]) -> Threat:
    return Threat.parse(content.header["threat"])


def _with_network(
    kind: Kind[Any], path: Path, content: Content[Any], opened: Opener, checked: Checked, device: torch.device | str
) -> None:
    header, rows = content.header, content.rows
    target = opened(header["data"] if is_zoo(header["model"]) else None)
    if target.data != header["data"]:
        target = opened(header["data"])
    if not checked.add("weights", _identity_faults(target, header)) or not rows:
        return
    if not checked.add("labels", label_faults(target.images, rows)):
        return
    if kind not in (ATTACK, SAMPLE):
        checked.unchecked.append("counts under noise: they would have to be drawn again")
        return
    target = in_precision(target, header.get("amp", "off"))
    smooth, network = header.get("smooth"), target.network
    if header.get("judged"):
        checked.unchecked.append("predictions of a smoothed network, by an older version")
        return
    if smooth:
        network = smooth_target(target, smooth, header["draws"]).network
    elif _is_random(target, device):
        checked.unchecked.append("predictions: two passes over the same images differ")
        return
    x, _ = target.images.batch(torch.tensor([row["index"] for row in rows]), device)
    batch = header.get("batch", 250)
    checked.add(f"{len(rows):,} predictions", shown(prediction_faults(network, x, rows, "clean", batch)))
    if len(rows) < header["examples"]:
        return
    points = _points(path, checked)
    if points is None:
        return
    checked.add(f"{len(rows):,} points", point_faults(points, target.images, rows, _threat(content)))
    if smooth:
        checked.unchecked.append("predictions at the points: the noise that the attack used is not saved")
    elif len(points["x_adv"]) == len(rows):
        moved = torch.from_numpy(points["x_adv"]).to(device=device, dtype=x.dtype)
        faults = prediction_faults(network, moved, rows, "adversarial", batch)
        checked.add(f"{len(rows):,} predictions at the points", shown(faults))


def _points(path: Path, checked: Checked) -> Any:
    try:
        found = read_points(path)
    except UserError as error:
        checked.faults.append(str(error))
        return None
    if found is None:
        checked.unchecked.append("points and predictions at them: no images were saved (atent attack --save-images)")
    return found


def _identity_faults(target: Target, header: Any) -> Iterator[str]:
    """The rows are of this network and of these images."""
    if header["weights"] != target.weights:
        yield f"rows of another network: weights {header['weights'][:8]}, but the network has {target.weights[:8]}"
    if header.get("images", "") != target.digest:
        digests = (header.get("images", "")[:8] or "none", target.digest[:8] or "none")
        yield f"rows of other images: digest {digests[0]}, but that of the data is {digests[1]}"


def _is_random(target: Target, device: torch.device | str) -> bool:
    x, _ = target.images.batch(slice(16), device)
    with borrowed(target.network):
        return repeat(target.network, x).random


def sentences(found: Sequence[Checked], what: str) -> list[str]:
    """The faults, or what was not checked, each with its file."""
    return [f"{one.path}: {words}" for one in found for words in getattr(one, what)]
