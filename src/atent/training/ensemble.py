"""One network of several trained ones, as a run that can be attacked, certified, compared and exported."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from atent.errors import UserError
from atent.evaluation.trained import find_weights, load, run_of
from atent.machine import environment
from atent.methods import readable
from atent.models.build import MODELS
from atent.models.ensemble import MOST_MEMBERS, Ensemble
from atent.models.standardize import Standardized
from atent.models.weights import weights_hash
from atent.progress import say
from atent.recipe import Recipe
from atent.storage.files import PART, save_tensors, write_json
from atent.storage.run import Run

SEEDS = {"seed", "validation_seed"}  # the keys in which the recipes may differ
ANY_NETWORKS = "in Python, atent.Ensemble joins any networks"


class Member(NamedTuple):
    """A trained network, the run that it belongs to and how it was trained."""

    name: str
    source: Run
    recipe: Recipe
    network: nn.Module
    digest: str

    @classmethod
    def opened(cls, path: Path, data_dir: Path | None) -> "Member":
        weights, recipe = find_weights(path)
        if recipe is None or recipe.model not in MODELS:
            made = f"has the network {recipe.model!r}" if recipe else "is no run or checkpoint of atent"
            raise UserError(f"{path} {made}; allowed: runs with a network of atent list models; {ANY_NETWORKS}")
        network = load(path, data_dir=data_dir)
        return cls(str(path), run_of(path, weights), recipe, network, weights_hash(network))

    @property
    def record(self) -> dict[str, object]:
        return {"run": self.name, "weights": self.digest, "recipe": self.recipe.model_dump(mode="json")}


@readable
def ensemble(runs: Sequence[str | Path], to: str | Path, *, data_dir: Path | None = None) -> Run:
    """Write the run `to` whose network averages the log-probabilities of the networks of `runs`.

    The recipes of the runs differ in their seeds alone, and their networks are built-in ones. The new run has the
    recipe of the first with `model = "4*small-cnn"` for four, and `members.json`, which has the name, the recipe and
    the sha256 of the weights of each. The folder appears when it is complete.

    Args:
        runs: Run folders, checkpoints of ours or `zoo:NAME`.
        to: A new folder.
        data_dir: The folder of the data set; it is read only for images in .npz files, for their shape.
    """
    if not 2 <= len(runs) <= MOST_MEMBERS:
        raise UserError(f"{len(runs)} runs for an ensemble; allowed: 2 to {MOST_MEMBERS}")
    run = Run(Path(to))
    if run.folder.exists() and (not run.folder.is_dir() or any(run.folder.iterdir())):
        raise UserError(f"{run.folder} exists already; allowed: a new folder")
    members = [Member.opened(Path(name), data_dir) for name in runs]
    _check(members)
    first = members[0]
    model = f"{len(members)}*{first.recipe.model}"
    recipe = first.recipe.model_copy(update={"model": model, "weights": None, "reset": (), "freeze": ()})
    _write(run, recipe, members)
    splits = {(member.recipe.validation, member.recipe.split_seed) for member in members}
    if len(splits) > 1 or not recipe.validation:
        say("caution: the members hold out different images, or none; the same validation_seed holds out the same ones")
    return run


def _check(members: Sequence[Member]) -> None:
    """Refuse members that differ in more than their seeds, or do not differ at all."""
    first, *others = members
    for member in others:
        if different := [key for key in member.recipe.different(first.recipe) if key not in SEEDS]:
            names = f"{first.name} and {member.name} differ in {', '.join(different)}"
            raise UserError(f"{names}; allowed: runs that differ in their seeds; {ANY_NETWORKS}")
        if first.source.data_record() != member.source.data_record():
            raise UserError(f"{first.name} and {member.name} were trained on different images; allowed: the same")
    seen: dict[str, str] = {}
    for member in members:
        if member.digest in seen:
            raise UserError(f"{seen[member.digest]} and {member.name} have the same weights; allowed: other ones")
        seen[member.digest] = member.name


def _write(run: Run, recipe: Recipe, members: Sequence[Member]) -> None:
    """Write the run aside and rename its folder, so that a kill leaves no part of it under its name."""
    source, known = members[0].source, {"members": [member.record for member in members]}
    settings, network = recipe.model_dump(mode="json"), _joined([member.network for member in members])
    aside = Run(run.folder.with_name(f".{run.folder.name}{PART}"))
    shutil.rmtree(aside.folder, ignore_errors=True)  # left by a command that was killed
    aside.begin({**settings, "data": source.place_of(recipe.data)}, environment(), source.data_record() or {})
    write_json(aside.recipe_file, settings)  # with the data as the first run names it
    write_json(aside.members, known)
    save_tensors(aside.best, network.state_dict(), {"recipe": settings, **known})
    if run.folder.exists():
        run.folder.rmdir()
    aside.folder.rename(run.folder)


def _joined(networks: Sequence[nn.Module]) -> nn.Module:
    """The ensemble; a standardizing layer, which is the same in all, comes once, before it."""
    first = networks[0]
    if not isinstance(first, Standardized):
        return Ensemble(networks)
    inner = []
    for network in networks:
        assert isinstance(network, Standardized)  # their recipes have the same key `standardize`
        if not all(map(torch.equal, first.standardize.buffers(), network.standardize.buffers())):
            raise UserError(
                "the runs standardize with the means and deviations of different images, since each holds out its own; "
                "allowed: runs with the same validation_seed"
            )
        inner.append(network.network)
    first.network = Ensemble(inner)
    return first
