"""Add a trained network to the zoo, and make the model cards from the rows in results/zoo.

    python scripts/fill_zoo.py runs/NAME --name NAME       # weights in half precision, the entry of the index
    atent attack zoo:NAME ... --out results/zoo/NAME       # rows of the stored weights; or atent certify
    python scripts/fill_zoo.py --cards                     # accuracies and cards of all networks, from these rows

The same run gives the same bytes. Repeated for a new training, the first command forgets the old accuracies.
"""

import argparse
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from atent.data.published import SOURCES
from atent.errors import UserError
from atent.evaluation.trained import find_weights, load, recipe_inside
from atent.export.card import Described, results_of, without_places
from atent.models import is_built_in
from atent.models.weights import read_weights, weights_hash
from atent.storage.files import read_json, save_tensors, write_atomically, write_json
from atent.storage.run import Run
from atent.zoo import index
from atent.zoo.index import Entry, Result, as_record, entry_of, read_index, weights_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "zoo"
LARGEST = 16_000_000  # bytes of all networks
LICENCE = "mit"
DIGITS = 6  # of accuracies in the index


def add(run: Path, name: str) -> Entry:
    """Write the best weights of a run in half precision, and the entry of the index; copy its recipe and log."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UserError(f"--name {name!r}; allowed: small letters, digits and hyphens, such as mnist-linf")
    weights, recipe = find_weights(run)
    if recipe is None or not is_built_in(recipe.model) or recipe.data not in SOURCES:
        raise UserError(f"{run} is not a run with a network of ours on a published data set")
    shared, entries = without_places(recipe), read_index()
    halves = {key: _halved(key, tensor) for key, tensor in read_weights(weights).items()}
    with TemporaryDirectory() as folder:
        draft = Path(folder) / f"{name}.safetensors"
        save_tensors(draft, halves, {"recipe": shared.model_dump(mode="json")})
        content = canonical(draft.read_bytes())
        draft.write_bytes(content)
        network = load(draft)
    entry = Entry(
        sha256=hashlib.sha256(content).hexdigest(),
        weights=weights_hash(network),
        bytes=len(content),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        model=shared.model,
        data=shared.data,
        threat=shared.threat,
        smooth=shared.smooth,
        defense=str(shared.defense["name"]),
    )
    known = entries.get(name)
    same = known is not None and known.weights == entry.weights
    entries[name] = entry.model_copy(update={"results": known.results}) if known and same else entry
    if (total := sum(one.bytes for one in entries.values())) > LARGEST:
        raise UserError(f"the zoo would have {total:,} bytes; allowed: {LARGEST:,}")
    write_atomically(index.FOLDER / f"{name}.safetensors", content)
    _write(entries)
    _copy_training(run, RESULTS / name, shared.model_dump(mode="json"))
    write_atomically(index.FOLDER / f"{name}.md", card(name).encode())
    return entries[name]


def _halved(key: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not bool(half.isfinite().all()):
        raise UserError(f"{key} has values that half precision cannot hold: up to {float(tensor.abs().max()):g}")
    return half


def canonical(content: bytes) -> bytes:
    """The same safetensors file with the keys of its header in order: the library writes metadata in random order."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _copy_training(run: Path, folder: Path, recipe: dict[str, object]) -> None:
    """The recipe, the log, the members and the environment of a training, without the place of the data here."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "recipe.json", recipe)
    if not run.is_dir():
        return
    source, target = Run(run), Run(folder)
    if source.log.exists():
        shutil.copyfile(source.log, target.log)
    if source.members.exists():
        shutil.copyfile(source.members, target.members)
        for k, member in enumerate(read_json(source.members)["members"]):
            if (log := Run(Path(member["run"])).log).exists():
                (folder / f"member-{k}").mkdir(exist_ok=True)
                shutil.copyfile(log, Run(folder / f"member-{k}").log)
    if source.environment_file.exists():
        words = json.dumps(read_json(source.environment_file), indent=2) + "\n"
        write_atomically(target.environment_file, re.sub(r"(--data-dir[ =])[^ \"]+", r"\1DATA", words).encode())


def results(name: str, entry: Entry) -> tuple[Result, ...]:
    """The accuracies of these weights, from the rows in results/zoo/NAME."""
    found = results_of(RESULTS / name, entry.weights)
    wanted = [{key: record[key] for key in Result.model_fields} for record in found]
    return tuple(Result.model_validate({key: _rounded(value) for key, value in record.items()}) for record in wanted)


def _rounded(value: object) -> object:
    return round(value, DIGITS) if isinstance(value, float) else value


def card(name: str) -> str:
    """The model card of a network: what its file and its entry in the index say."""
    entry, recipe = entry_of(name), recipe_inside(weights_file(name))
    source = SOURCES[entry.data]
    assert recipe is not None
    found = [as_record(one) for one in entry.results]
    about = Described(
        name, recipe, entry.weights, source.image, source.classes, entry.parameters, found, LICENCE, f"zoo:{name}"
    )
    return about.card()


def fill_cards() -> list[str]:
    """Make the accuracies of the index and all cards from the rows; returns a line for each network."""
    entries = {name: one.model_copy(update={"results": results(name, one)}) for name, one in read_index().items()}
    _write(entries)
    for name in entries:
        write_atomically(index.FOLDER / f"{name}.md", card(name).encode())
    return [f"zoo:{name}: {len(entry.results)} results" for name, entry in entries.items()]


def _write(entries: dict[str, Entry]) -> None:
    write_json(index.FOLDER / "index.json", {name: entries[name].model_dump(mode="json") for name in sorted(entries)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a finished run folder, or a checkpoint")
    parser.add_argument("--name", help="name in the zoo, such as mnist-linf")
    parser.add_argument("--cards", action="store_true", help="make the accuracies and the cards from the rows")
    given = parser.parse_args()
    if (given.run is None) != (given.name is None) or not (given.run or given.cards):
        parser.error("give RUN with --name NAME, or --cards")
    try:
        if given.run:
            entry = add(given.run, given.name)
            print(f"zoo:{given.name}: {entry.bytes:,} bytes, sha256 {entry.sha256[:12]}, weights {entry.weights[:12]}")
        for line in fill_cards() if given.cards else []:
            print(line)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
