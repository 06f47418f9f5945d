"""The findings of the checks of `atent attack`, a file for each network, data set and threat."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atent.errors import UserError
from atent.storage.files import alone, write_json
from atent.storage.row_file import leave_out
from atent.storage.rows import variant_of
from atent.storage.typed import CHECKS, read_typed
from atent.threat import Threat

FOLDER = "checks"
_IDENTITY = ("threat", "data", "model", "weights", "smooth", "draws", "transfer")
_WHERE_KNOWN = ("amp", "images")  # part of the identity only where a header has them


class Checked(NamedTuple):
    """The warnings of the checks of one network at one threat; none if nothing was suspicious."""

    weights: str
    data: str
    smoothing: str
    threat: Threat
    warnings: tuple[str, ...]


def keep_checks(folder: Path, header: Mapping[str, Any], warnings: Sequence[str], transfer: str | None = None) -> None:
    """Write the findings next to the rows; later ones with the same settings take their place."""
    known = {**header, "threat": Threat.parse(header["threat"]).exact, "transfer": transfer}
    more = {key: known[key] for key in _WHERE_KNOWN if key in known}
    identity = json.dumps({key: known.get(key) for key in _IDENTITY} | more, sort_keys=True)
    words = re.sub(r"[^a-z0-9.]+", "-", f"{header['threat']} {header['data']}".lower()).strip("-")[:100]
    path = folder / FOLDER / f"{words}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.json"
    kept = {key: value for key, value in header.items() if key not in ("classes", "label", "examples")}
    with alone(path):
        write_json(path, {**kept, "transfer": transfer, "warnings": list(warnings)})


def kept_checks(folder: Path, report: Callable[[str], None] = leave_out) -> list[Checked]:
    """The findings that a run folder has. A file that cannot be read is skipped and passed to `report`."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            one = read_typed(path, CHECKS)
            place = (one["weights"], one["data"], variant_of(one))
            found.append(Checked(*place, Threat.parse(one["threat"]), tuple(one["warnings"])))
        except UserError as error:
            report(f"{path}: {error}")
    return found
