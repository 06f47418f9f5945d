"""The networks whose rows are verified: that of the run folder, and those of the zoo that rows name."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from atent.errors import UserError
from atent.evaluation.target import Target, open_target
from atent.recipe import parse_recipe
from atent.storage.disk import check_regular
from atent.storage.files import load_tensors, read_json
from atent.storage.run import Run
from atent.zoo.index import is_zoo, weights_file

Opener = Callable[[str | None], Target]
OWN = ""  # the name of the folder's own network


def network_of(header: Mapping[str, Any]) -> str:
    """The network of a file of rows: `zoo:NAME`, or the folder's own."""
    model = str(header.get("model", ""))
    return model if is_zoo(model) else OWN


def named_networks(paths: Iterable[Path]) -> set[str]:
    """The networks of all files; of a file without a header, the folder's own."""
    return {network_of(_header(path)) for path in paths}


def _header(path: Path) -> Mapping[str, Any]:
    try:
        check_regular(path)
        with path.open("rb") as file:
            header = json.loads(file.readline())
    except (UserError, OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def opener(network: Path, **how: Any) -> Opener:
    """Opens a run folder or `zoo:NAME` with the test images of a data set, each once; None: those of its recipe."""
    return cache(lambda data: open_target(network, data=data, **how))


def zoo_faults(name: str) -> Iterator[str]:
    """The file of a pretrained network has the sha256 of the index."""
    try:
        weights_file(name)
    except UserError as error:
        yield str(error).removeprefix(f"{name}: ")


def weight_faults(folder: Path) -> Iterator[str]:
    """The file matches its checksum, and was trained with the recipe of the folder."""
    run = Run(folder)
    try:
        recorded = load_tensors(run.best)[1].get("recipe")
        if recorded and run.recipe_file.exists():
            other = _different_keys(read_json(run.recipe_file), recorded, run)
            if other:
                yield f"its recipe is not that of {run.recipe_file.name}: {', '.join(other)} differ"
    except (UserError, ValueError, OSError) as error:
        yield str(error)


def _different_keys(ours: dict[str, Any], recorded: dict[str, Any], run: Run) -> list[str]:
    """The keys in which two recipes differ, epochs aside; keys that an older version did not have are completed."""
    recorded = {**recorded, "epochs": ours.get("epochs")}
    if recorded == ours:
        return []
    return parse_recipe(ours, str(run.recipe_file), make="ours").different(parse_recipe(recorded, str(run.best)))
