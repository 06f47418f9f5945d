"""Remove a result: a file of rows, and the files made from it."""

import shutil
from pathlib import Path
from typing import Any

from atent.errors import UserError
from atent.storage import disk
from atent.storage.brackets import BRACKET
from atent.storage.certificates import CERTIFY
from atent.storage.files import alone
from atent.storage.row_format import Damage, Kind, lines_of, parse
from atent.storage.rows import ATTACK
from atent.storage.samples import SAMPLE

KINDS: dict[str, Kind[Any]] = {kind.folder: kind for kind in (ATTACK, CERTIFY, SAMPLE, BRACKET)}


def remove_result(path: Path) -> list[Path]:
    """Remove a file of rows with its pictures and saved images; returns the paths removed. Refuse any other file.

    With certificates, the attacks on them (`--attack`) are removed, too: their rows mean nothing without them.
    """
    kind = check_result(path)
    with alone(path):
        removed = [path]
        for companion in (path.with_suffix(end) for end in (".png", ".npz", ".points")):
            if companion.is_dir():
                shutil.rmtree(companion)
            elif companion.exists():
                companion.unlink()
            else:
                continue
            removed.append(companion)
        path.unlink()
    (path.parent / f".{path.name}.lock").unlink(missing_ok=True)
    if kind is CERTIFY:
        for other in sorted((path.parent.parent / BRACKET.folder).glob("*.jsonl")):
            if _header(BRACKET, other).get("certificates") == path.name:
                removed += remove_result(other)
    return removed


def check_result(path: Path) -> Kind[Any]:
    """The kind of a result. A UserError for everything else."""
    kind = KINDS.get(path.absolute().parent.name)
    if path.suffix != ".jsonl" or path.is_symlink() or not path.is_file() or kind is None or not _header(kind, path):
        folders = ", ".join(f"RUN/{name}/" for name in KINDS)
        raise UserError(f"{path} is not a result; allowed: a file of rows (.jsonl) in {folders}")
    return kind


def _header(kind: Kind[Any], path: Path) -> dict[str, Any]:
    """The header of a file of this kind; empty if it is of another kind."""
    try:
        return parse(kind, lines_of(disk.read(path))).header
    except (Damage, OSError):
        return {}
