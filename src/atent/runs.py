"""A run is a folder: recipe, environment, a log line per epoch, checkpoints, and a row per attacked example.

Files are written aside and renamed, so a reader (or a kill) never sees half of one.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from atent.errors import UserError
from atent.recipe import Recipe, parse_recipe
from atent.tables import defaults

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_INFO = "atent"  # the key of our JSON in a safetensors header
_SUM = "sha256"  # the key of the checksum beside it
_PART = "//"  # splits the part of a checkpoint from a tensor's name; weights themselves have no part


@dataclass(frozen=True)
class Run:
    """The files of a training. `best` holds the weights to use, `last` the state to go on from."""

    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.json"

    @property
    def environment_file(self) -> Path:
        return self.folder / "environment.json"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def data_file(self) -> Path:
        return self.folder / "data.json"

    @property
    def board(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def log(self) -> Path:
        return self.folder / "train.jsonl"

    def recipe(self) -> Recipe:
        return parse_recipe(read_json(self.recipe_file), str(self.recipe_file))

    def data_record(self) -> dict[str, Any] | None:
        """What the training found in a user's own data."""
        return read_json(self.data_file) if self.data_file.exists() else None

    def begin(self, recipe: Recipe, environment: Mapping[str, object], data: Mapping[str, Any]) -> None:
        """Make the folder, or check that it belongs to this very recipe; record data and each start's environment."""
        if self.recipe_file.exists():
            self.check_same(recipe, self.recipe())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.folder}: {error.strerror}") from None
        for orphan in self.folder.glob(".*.part"):  # of a process that was killed while it wrote
            orphan.unlink(missing_ok=True)
        write_json(self.recipe_file, recipe.model_dump(mode="json"))
        if data:
            write_json(self.data_file, data)
        starts = read_json(self.environment_file)["starts"] if self.environment_file.exists() else []
        if environment not in starts:
            write_json(self.environment_file, {"starts": [*starts, environment]})

    def check_same(self, recipe: Recipe, found: Recipe) -> None:
        """Refuse to mix two recipes in one folder. Of what is found, nothing is made: it is compared as data."""
        ours, theirs = recipe.model_dump(mode="json"), found.model_dump(mode="json")
        for part, method in recipe.make_methods().items():
            if ours[part]["name"] == theirs[part]["name"]:  # a field that the user's class got since has its default
                added = {key: value for key, value in defaults(method).items() if key in ours[part]}
                theirs[part] = {**added, **theirs[part]}
        different = sorted(key for key in ours if ours[key] != theirs[key])
        if different:
            raise UserError(
                f"{self.folder} holds a run of another recipe (different: {', '.join(different)}); "
                "give another --out, or remove that folder"
            )

    def history(self) -> list[dict[str, Any]]:
        """The log's lines, one per finished epoch."""
        return list(read_rows(self.log)) if self.log.exists() else []


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold `path` for this process; a second one is refused. The system lets go of it when the process ends, however.

    (On systems without `fcntl` nothing is held.)
    """
    if fcntl is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(_open_lock(path.parent / f".{path.name}.lock"), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is writing {path}; wait for it, or give another --out") from None
        yield


def _open_lock(lock: Path) -> int:
    """Open or make an empty plain file; what else may be in its place stays as it is."""
    refusal = UserError(f"{lock} is in the place of a lock, and no plain file; remove it")
    if lock.is_symlink() or (lock.exists() and not lock.is_file()):
        raise refusal
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link made since
            raise refusal from None
        raise


def write_aside(path: Path, content: bytes) -> None:
    """Write a file under another name, make sure it is on the disk, and rename it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Mapping[str, object]) -> None:
    write_aside(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: not a JSON object")
    return value


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    write_aside(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSONL file; a last line that a kill cut short is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise UserError(f"cannot read {path}: line {number}: {error}") from None
                if not isinstance(row, dict):
                    raise UserError(f"cannot read {path}: line {number} is not a JSON object")
                yield row


def save_tensors(path: Path, tensors: Mapping[str, Tensor], info: Mapping[str, object]) -> None:
    """One safetensors file with our JSON in its header: tensors and what is said of them cannot come apart."""
    # Cloned, since safetensors refuses tensors that share memory (tied weights).
    flat = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    words = json.dumps(info)
    write_aside(path, to_bytes(flat, metadata={_INFO: words, _SUM: _checksum(flat, words)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file and our JSON of its header, {} in a foreign file.

    A checksum covers both. Files of other programs and of our first versions have none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        words = metadata.get(_INFO, "{}")
        if _SUM in metadata and metadata[_SUM] != _checksum(tensors, words):
            raise UserError(f"{path} is damaged: its content does not match its checksum")
        info = json.loads(words)
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise error if isinstance(error, UserError) else UserError(f"cannot read {path}: {error}") from None
    if not isinstance(info, dict):
        raise UserError(f"cannot read {path}: the JSON of its header is not an object")
    return tensors, info


def _checksum(tensors: Mapping[str, Tensor], words: str) -> str:
    """sha256 over the JSON and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(words.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def join_parts(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """{"": weights, "average": ...} as one flat table of tensors."""
    return {f"{part}{_PART}{name}" if part else name: t for part, table in parts.items() for name, t in table.items()}


def take_part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one part; the part "" is the weights."""
    if part == "":
        return {name: tensor for name, tensor in tensors.items() if _PART not in name}
    start = part + _PART
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
