"""A run is a folder: recipe, environment, one log line per epoch, checkpoints, and one row per attacked image."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atent.errors import UserError
from atent.storage.files import PART, write_json
from atent.storage.typed import DATA, ENVIRONMENT, read_log, read_typed

_PLACE = "place"  # the key in data.json of where the data was


@dataclass(frozen=True)
class Run:
    """The files of a training: `best` has the weights to use, `last` the state to resume from.

    `good` has the state to which a training with recoveries is taken back; it is removed at the end.
    """

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
    def good(self) -> Path:
        return self.folder / "good.safetensors"

    @property
    def data_file(self) -> Path:
        return self.folder / "data.json"

    @property
    def members(self) -> Path:
        """Of which networks an ensemble consists; other runs do not have this file."""
        return self.folder / "members.json"

    @property
    def board(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def log(self) -> Path:
        return self.folder / "train.jsonl"

    def data_record(self) -> dict[str, Any] | None:
        """The record of a user's own data that the training wrote; None if there is none."""
        if not self.data_file.exists():
            return None
        return {key: value for key, value in read_typed(self.data_file, DATA).items() if key != _PLACE}

    def place_of(self, data: str) -> str:
        """The path of the user's own data that the run was trained on, from any working folder.

        It is where the training found it, or, if run and data have moved together, the same way from the run folder.
        A published data set, and data that is at neither place, is returned as it is named.
        """
        known = read_typed(self.data_file, DATA).get(_PLACE, {}) if self.data_file.exists() else {}
        places = [Path(known["path"])] if "path" in known else []
        places += [self.folder / known["from_run"]] if "from_run" in known else []
        return next((str(place) for place in places if place.exists()), data)

    def _place(self, data: str) -> dict[str, str]:
        path = Path(self.place_of(data)).resolve()
        if not path.exists():  # images given in Python
            return {}
        try:
            return {"path": str(path), "from_run": os.path.relpath(path, self.folder.resolve())}
        except ValueError:  # another drive of Windows
            return {"path": str(path)}

    def begin(self, recipe: Mapping[str, Any], environment: Mapping[str, object], data: Mapping[str, Any]) -> None:
        """Make the folder; record the recipe, the data and the environment of each start."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.folder}: {error.strerror}") from None
        for orphan in self.folder.glob(f".*{PART}"):  # left by a process that was killed during a write
            orphan.unlink(missing_ok=True)
        write_json(self.recipe_file, recipe)
        if data:
            write_json(self.data_file, {**data, _PLACE: self._place(recipe["data"])})
        known = read_typed(self.environment_file, ENVIRONMENT) if self.environment_file.exists() else {}
        starts = known.get("starts", [])
        if environment not in starts:
            write_json(self.environment_file, {"starts": [*starts, environment]})

    def history(self) -> list[dict[str, Any]]:
        """The lines of the log, one per finished epoch."""
        return read_log(self.log) if self.log.exists() else []
