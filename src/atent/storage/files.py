"""Files that survive a kill and a power cut: written under a temporary name, then renamed; locks; JSON; tensors."""

import errno
import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from atent.errors import UserError
from atent.storage import disk

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


PART = ".part"  # the end of the names of temporary files
_INFO = "atent"  # the key of our JSON in a safetensors header
_SUM = "atent-sha256"  # the key of the checksum in the same header
_PART = "//"  # separates the part of a checkpoint from a tensor's name; the weights themselves have no part


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock `path` for this process; a second process gets a UserError.

    The system releases the lock when the process ends, also when it is killed. Without `fcntl` (Windows) there is no
    lock.
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
    """Open or create an empty regular file; anything else with this name is left unchanged."""
    refusal = UserError(f"{lock} is in the place of a lock file but is not a regular file; remove it")
    if lock.is_symlink() or (lock.exists() and not lock.is_file()):
        raise refusal
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link made in the meantime
            raise refusal from None
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: under a temporary name, flushed to disk, then renamed."""
    disk.check_regular(path)
    remove_orphans(path.parent, path.name)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.", suffix=PART)
    temporary = Path(name)
    try:
        try:
            _lock(handle)
            disk.write(handle, content)
            disk.sync(handle)
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            disk.rename(temporary, path)
        finally:
            os.close(handle)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    disk.sync_folder(path.parent)


def remove_orphans(folder: Path, name: str = "") -> None:
    """Remove the temporary files of killed processes: those of a file with this name, or all in and below the folder.

    Those of a living process are locked.
    """
    if fcntl is None:
        return
    found = folder.glob(f".{glob.escape(name[:200])}.*{PART}") if name else folder.rglob(f".*{PART}")
    for orphan in filter(Path.is_file, found):
        with suppress(OSError), orphan.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            orphan.unlink(missing_ok=True)


def _lock(handle: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Mapping[str, object]) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(disk.read(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise error if isinstance(error, UserError) else UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: not a JSON object")
    return value


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSONL file; an incomplete last line (after a kill) is skipped."""
    disk.check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"cannot read {path}: line {number}: {error}") from None
                if not isinstance(row, dict):
                    raise UserError(f"cannot read {path}: line {number} is not a JSON object")
                yield row


def save_tensors(path: Path, tensors: Mapping[str, Tensor], info: Mapping[str, object]) -> None:
    """Write one safetensors file with `info` as JSON in its header, so that both stay together."""
    # Cloned, since safetensors refuses tensors that share memory (tied weights).
    flat = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    words = json.dumps(info)
    write_atomically(path, to_bytes(flat, metadata={_INFO: words, _SUM: _checksum(flat, words)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file and the JSON of its header; {} if another program wrote the file.

    A checksum covers both. Files of other programs and of the first versions of atent have none.
    """
    disk.check_regular(path)
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
    """{"": weights, "average": ...} as one flat dict of tensors."""
    return {f"{part}{_PART}{name}" if part else name: t for part, table in parts.items() for name, t in table.items()}


def take_part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one part; the part "" is the weights."""
    if part == "":
        return {name: tensor for name, tensor in tensors.items() if _PART not in name}
    start = part + _PART
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
