"""One network of several trained ones, as a run that can be attacked, certified, compared and exported."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from atent.errors import UserError
from atent.evaluation.trained import find_weights, load, run_of
from atent.machine import environment
from atent.methods import readable
from atent.models.ensemble import MOST_MEMBERS, Ensemble
from atent.models.standardize import Standardized
from atent.models.weights import weights_hash
from atent.progress import say
from atent.recipe import Recipe
from atent.storage.files import save_tensors, write_json
from atent.storage.run import Run

SAME = ("model", "data", "threat", "standardize", "smooth", "resize", "white", "test_share")


class Member(NamedTuple):
    """A trained network, the run that it belongs to and how it was trained."""

    name: str
    source: Run
    recipe: Recipe
    network: nn.Module

    @property
    def digest(self) -> str:
        return weights_hash(self.network)


@readable
def ensemble(runs: Sequence[str | Path], to: str | Path, *, data_dir: Path | None = None, trust: bool = False) -> Run:
    """Write the run `to` whose network averages the log-probabilities of the networks of `runs`.

    The runs have the same kind of network, data and threat; their seeds or defenses differ. The new run has the recipe
    of the first one with `model = "4*small-cnn"` for four, and `members.json`, which tells their names, seeds and
    weights. Members with the same key `validation_seed` hold out the same images, which are then held out of the
    whole; a line tells where they do not.

    Args:
        runs: Run folders, checkpoints of ours or `zoo:NAME`.
        to: A new folder.
        data_dir: The folder of the data set; it is read only for images in .npz files, for their shape.
        trust: Whether to import and run a `package.module:function` that the runs name.
    """
    if not 2 <= len(runs) <= MOST_MEMBERS:
        raise UserError(f"{len(runs)} runs for an ensemble; allowed: 2 to {MOST_MEMBERS}")
    run = Run(Path(to))
    if run.recipe_file.exists() or run.last.exists():
        raise UserError(f"{run.folder} is a run already; allowed: a new folder")
    members = [_opened(Path(name), data_dir, trust=trust) for name in runs]
    _check(members)
    first = members[0]
    data = first.source.place_of(first.recipe.data)
    recipe = first.recipe.model_copy(update={"model": f"{len(members)}*{first.recipe.model}", "data": data})
    settings, known = recipe.model_dump(mode="json"), [_record(member) for member in members]
    network = _joined([member.network for member in members])
    run.folder.mkdir(parents=True, exist_ok=True)
    save_tensors(run.best, network.state_dict(), {"recipe": settings, "members": known})
    write_json(run.members, {"members": known})
    run.begin(settings, environment(), first.source.data_record() or {})
    if len({member.recipe.split_seed for member in members}) > 1 or not recipe.validation:
        say("caution: no image is held out of all members; train them with the same validation_seed to have some")
    return run


def _opened(path: Path, data_dir: Path | None, *, trust: bool) -> Member:
    network = load(path, data_dir=data_dir, trust=trust)
    weights, recipe = find_weights(path)
    assert recipe is not None  # `load` refuses files without one
    return Member(str(path), run_of(path, weights), recipe, network)


def _check(members: Sequence[Member]) -> None:
    first = members[0]
    for member in members[1:]:
        for key in SAME:
            ours, other = getattr(first.recipe, key), getattr(member.recipe, key)
            if ours != other:
                raise UserError(f"{first.name} has {key} = {ours!r} and {member.name} {other!r}; allowed: the same")
    seen: dict[str, str] = {}
    for member in members:
        if member.digest in seen:
            raise UserError(f"{seen[member.digest]} and {member.name} have the same weights; allowed: other ones")
        seen[member.digest] = member.name


def _record(member: Member) -> dict[str, object]:
    return {"run": member.name, "seed": member.recipe.seed, "weights": member.digest}


def _joined(networks: Sequence[nn.Module]) -> nn.Module:
    """The ensemble; a standardizing layer, which is the same in all, comes once, before it."""
    first = networks[0]
    if not isinstance(first, Standardized):
        return Ensemble(networks)
    inner = []
    for network in networks:
        assert isinstance(network, Standardized)  # their recipes have the same key `standardize`
        if not all(map(_equal, first.standardize.buffers(), network.standardize.buffers())):
            raise UserError("the runs standardize with other means or deviations; allowed: runs on the same images")
        inner.append(network.network)
    first.network = Ensemble(inner)
    return first


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool((a == b).all())
