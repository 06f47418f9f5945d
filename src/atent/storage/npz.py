"""Arrays of an .npz file, whoever wrote it: sizes are checked before reading, and no object is unpickled."""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atent.errors import UserError, reason_of
from atent.machine import ram_bytes
from atent.storage import disk

# What zipfile, zlib, lzma and numpy raise for damaged files; RuntimeError: encrypted; NotImplementedError: a method
# of compression that Python does not have.
DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, SyntaxError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
_END = ".npy"
_HEADER = 1 << 16  # bytes: numpy refuses longer headers than 10,000 anyway


class Npz(Mapping[str, NDArray[Any]]):
    """The arrays by name. Each is read and decompressed once, when it is first asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        names = archive.namelist()
        self._members = {name.removesuffix(_END): name for name in names if name.endswith(_END)}
        self._read: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._read:
            member = self._members[name]
            try:
                self._read[name] = self._array(member)
            except DAMAGE as error:
                if isinstance(error, UserError):
                    raise
                raise UserError(f"{self.path}: cannot read array {name!r}: {reason_of(error)}") from None
        return self._read[name]

    def _array(self, member: str) -> NDArray[Any]:
        """The array of a member whose declared size fits into the memory and is that of its header."""
        size, most = self.archive.getinfo(member).file_size, ram_bytes() // 2
        if size > most:
            raise UserError(f"{self.path}: {member} declares {size:,} bytes; allowed: {most:,}, half of the memory")
        with self.archive.open(member) as file:
            needed = _size_of(file.read(min(size, _HEADER)))
            if needed != size:
                raise ValueError(f"{member} declares {size:,} bytes, and its header an array of {needed:,}")
        with self.archive.open(member) as file:
            found = np.lib.format.read_array(cast(Any, file), allow_pickle=False)
            if file.read(1):  # also checks the sum of the member
                raise ValueError(f"{member} is longer than it declares")
        return found


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """The arrays of a file; a UserError if it is no .npz file."""
    disk.check_regular(path)
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise UserError(f"cannot read {path}: it is not an .npz file ({reason_of(error)})") from None
    with archive:
        yield Npz(path, archive)


def _size_of(start: bytes) -> int:
    """The bytes of the .npy file that begins with these; ValueError if it has Python objects."""
    file = io.BytesIO(start)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"version {version[0]}.{version[1]} of the format .npy; allowed: 1.0 and 2.0")
    if dtype.hasobject:
        raise ValueError("it has Python objects, which are not unpickled for safety; allowed: numbers and text")
    size = file.tell() + dtype.itemsize
    for side in shape:
        size = file.tell() + (size - file.tell()) * int(side)
    return size
