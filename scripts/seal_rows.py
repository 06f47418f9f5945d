"""Add checksums to finished files of rows that an older version wrote: python scripts/seal_rows.py results

A file is sealed only if each of its images has one row and all fields have their types. Rows, costs and file names do
not change. The checksums detect changes from now on, not earlier ones.
"""

import argparse
from pathlib import Path
from typing import Any

from atent.storage.certificates import CERTIFY
from atent.storage.files import read_rows, write_atomically
from atent.storage.row_file import RowFile
from atent.storage.row_format import SEALED, Cost, Kind, close_batch, to_line
from atent.storage.rows import ATTACK

KINDS: tuple[Kind[Any], ...] = (ATTACK, CERTIFY)


def sealed(path: Path) -> bytes:
    """The file with checksums: after each batch or, if costs were not recorded, one after all rows."""
    header, *lines = read_rows(path)
    checksum = to_line({**header, **SEALED})
    content, batch = [checksum], list[bytes]()
    for number, line in enumerate(lines):
        if "cost" not in line:
            batch.append(to_line(line))
        if "cost" in line or number == len(lines) - 1:
            cost = Cost(**line["cost"]) if "cost" in line else None
            closing, checksum = close_batch(checksum, batch, cost)
            content += [*batch, closing]
            batch = []
    return b"".join(content)


def seal(file: RowFile[Any]) -> bool:
    """Seal a file that is not sealed yet, and check that its content is the same."""
    before = file.read()
    if before.verified:
        return False
    write_atomically(file.path, sealed(file.path))
    after = file.read()
    assert (after.rows, after.cost) == (before.rows, before.cost)
    assert RowFile.of(file.kind, file.path.parent.parent, after.header).path == file.path
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="run folders are looked for here and below")
    folder = parser.parse_args().folder
    found = [RowFile(kind, path) for kind in KINDS for path in sorted(folder.rglob(f"{kind.command}/*.jsonl"))]
    print(f"{sum(map(seal, found))} of {len(found)} files sealed; the others were sealed before")
