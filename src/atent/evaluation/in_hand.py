"""A network that a user has in hand, and images given as objects or by name, as a target."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atent.data.dataset import open_data
from atent.data.given import InHand, given_images, images_hash, name_of
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.target import Target
from atent.models.weights import weights_hash
from atent.network import answers, borrowed, logits_only, predict
from atent.parallel.team import current_team
from atent.storage.files import alone, write_atomically
from atent.storage.rows import Row
from atent.threat import Threat


@contextmanager
def in_hand(
    model: nn.Module,
    x: InHand | str,
    y: Any = None,
    *,
    examples: int | None = None,
    data_dir: Path | str | None = None,
) -> Iterator[Target]:
    """The network and the images as a target. The network stays on its device and is unchanged afterwards."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}; allowed: a torch.nn.Module (atent.load opens a run)")
    called = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):  # it does not support hooks, which count its passes
        model = nn.Sequential(model)
    with logits_only(model):
        if isinstance(x, str | Path):
            check_no_labels(x, y)
            found = open_data(str(x), Path(data_dir) if data_dir else None)
            images, name, digest = found.images("test").first(examples), str(x), found.digest
            check_fits(model, images)
        else:
            images, name = given_images(x, y, examples=examples), name_of(x)
            images = images.named_for(check_fits(model, images))
            digest = images_hash(images)
        yield Target(model, weights_hash(model), called, images, name, None, Path("runs"), digest)


def check_fits(model: nn.Module, images: Images) -> int:
    """The number of the network's classes; a UserError if it does not take the images, or has no class for a label."""
    x, _ = images.batch(slice(2), device_of(model))
    try:
        with borrowed(model):
            classes = answers(model, x).shape[1]
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the network does not take images of shape {images.shape.image}: {reason}") from error
    most = int(images.y.max())
    if most >= classes:
        raise UserError(f"label {most} for a network of {classes} classes; allowed: 0 to {classes - 1}")
    return classes


def check_no_labels(x: object, y: object) -> None:
    """Refuse labels next to images that have them."""
    if y is not None:
        raise UserError(f"y = {str(y)[:40]!r} next to {x!r}, which has the labels; leave y out")


def device_of(model: nn.Module) -> torch.device:
    """The device of the network's first tensor; the CPU if it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def threat_of(y: Any, threat: Threat | str | None) -> Threat:
    """The threat that was given. The usual mistake is named: it stands in the place of the labels."""
    if threat is None:
        place = f"y = {str(y)!r}; " if isinstance(y, str | Threat) else ""
        raise UserError(f"{place}a threat must be given, such as threat='linf:8/255'")
    found = Threat.parse(threat)
    check_box(found)
    return found


def check_box(threat: Threat) -> None:
    """Refuse another pixel box than that of the images; neither rows nor recipes have one."""
    if threat.box != (0.0, 1.0):
        raise UserError(f"threat {threat} with box {threat.box}; allowed: (0, 1), the range of the pixels")


def check_counts(**given: object) -> None:
    """Refuse what is no count, before it is written into a file; None is a default."""
    for name, count in given.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"{name} {count!r}; allowed: a whole number >= 1")


def check_answers(target: Target, rows: Sequence[Row], folder: Path) -> None:
    """Refuse rows that a network with the same weights and another `forward` left in the folder."""
    x, _ = target.images.batch(slice(64), device_of(target.network))
    with borrowed(target.network):
        found = predict(target.network, x).tolist()
    known = {row["index"]: row["clean"] for row in rows}
    if any(known.get(index, label) != label for index, label in enumerate(found)):
        raise UserError(
            f"{folder} has rows of another network with the same weights and class name; allowed: another out"
        )


@contextmanager
def rows_folder(out: Path | str | None) -> Iterator[Path]:
    """The folder for rows: the one given, or a temporary one."""
    if out is not None:
        yield _folder(out)
        return
    if current_team().size > 1:
        raise UserError("out must be given with several processes: a folder that all of them can read")
    with tempfile.TemporaryDirectory(prefix="atent-") as folder:
        yield Path(folder)


def _folder(path: Path | str) -> Path:
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"{path} is a file; allowed: a folder, or a path where one can be made")
    return Path(path)


def read_files(paths: list[Path], folder: Path) -> dict[str, bytes]:
    """The content of files, by their path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def save_files(files: dict[str, bytes], folder: Path | str) -> Path:
    """Write files with these names and contents into a run folder."""
    for name, content in files.items():
        path = _folder(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path):
            write_atomically(path, content)
    return Path(folder)
