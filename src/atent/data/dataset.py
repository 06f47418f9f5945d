"""A data set by name (a published one) or by path (a user's own images)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from atent.data.arrays import Arrays
from atent.data.folder import recorded_folder, scan_folder
from atent.data.given import GIVEN
from atent.data.images import Images, Split
from atent.data.published import SOURCES, Published
from atent.errors import UserError, unknown


class DataSet(Protocol):
    """Train and test images."""

    @property
    def record(self) -> dict[str, Any]:
        """What a run stores about the data, so that a later change of the data is detected or has no effect."""
        ...

    @property
    def digest(self) -> str:
        """A hash that identifies the test images where the name of the data set does not; otherwise empty."""
        ...

    def images(self, split: Split) -> Images: ...


def open_data(
    name: str,
    data_dir: Path | None = None,
    *,
    resize: int | None = None,
    test_share: float = 0.2,
    white: int | None = None,
    known: Mapping[str, Any] | None = None,
) -> DataSet:
    """A published data set by name, or a folder of images or .npz file by path; `known` is a run's record of it.

    Images with 16 bits are scaled so that `white` becomes 1.
    """
    if name in SOURCES:
        for key, value in (("resize", resize), ("white", white)):
            if value is not None:
                raise UserError(f"{key} = {value} with data {name}; allowed: only with your own images")
        return Published(name, data_dir)
    if name.endswith(GIVEN):
        raise UserError(f"the images were {name}; give them again in Python, or others by name with --data")
    path = Path(name)
    if path.is_dir():
        return recorded_folder(path, known) if known else scan_folder(path, resize, test_share, white)
    if path.suffix != ".npz" or not path.is_file():
        raise unknown("data set", name, [*SOURCES, "a folder with a folder of images per class", "an .npz file"])
    if resize is not None:
        raise UserError(f"resize = {resize} with {name}; allowed: only with folders of your own images")
    arrays = Arrays(path, test_share, white)
    if known and known != arrays.record:
        raise UserError(f"{path} is not the file that this run was trained on: its sha256 sum has changed")
    return arrays


def load(name: str, split: Split, data_dir: Path | None = None) -> Images:
    """One split of a data set, in memory."""
    return open_data(name, data_dir).images(split).in_memory()
