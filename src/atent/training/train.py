"""Train a network in one call: a network in hand or by name, images in hand or by name, a result that prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from atent.data.given import GIVEN, Given, InHand, given_images, name_of
from atent.errors import UserError
from atent.evaluation.in_hand import check_box, check_fits, check_no_labels
from atent.evaluation.trained import load
from atent.machine import pick_device
from atent.methods import readable
from atent.network import logits_only
from atent.recipe import Recipe, load_recipe
from atent.report.html import html_table
from atent.storage.rows import rate_of
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.options import TrainingOptions

SIGNS = {
    "collapsed": "robust accuracy on held-out images collapsed",
    "masked": "attacks without gradients broke images that attacks with gradients had failed on: masked gradients",
    "plateau": "the loss was stuck at that of a constant prediction",
    "recoveries": "the training failed before, and was taken back to its last good state with half the learning rate",
}


@dataclass(frozen=True, repr=False)
class Training:
    """A finished training. It prints as one line.

    Attributes:
        network: The trained network with the weights of its best epoch, in eval mode.
        folder: The run folder: recipe, log, checkpoints. `atent.load` opens it, the same call resumes it.
        defense: The name of the method.
        threat: What it was trained against.
        epoch: The best epoch, whose weights these are.
        images: The number of held-out images on which it was chosen; 0 if there were none.
        clean: The share of them that are classified correctly, in [0, 1]; None if there were none.
        clean_interval: Its 95 % interval.
        robust: The share of them that are classified correctly under the recipe's monitor. It is no test result:
            `atent.evaluate` gives that.
        robust_interval: Its 95 % interval.
        history: A line for each epoch, as in `train.jsonl`.
        warnings: Signs that the training failed, a sentence each.
    """

    network: nn.Module
    folder: Path
    defense: str
    threat: str
    epoch: int
    images: int
    clean: float | None
    clean_interval: tuple[float, float] | None
    robust: float | None
    robust_interval: tuple[float, float] | None
    history: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """`trades, l2:0.5, epoch 9 of 10, 500 held-out images: 47.3 % robust [43.0, 51.7], 81.0 % clean; runs/a`."""
        held = "no held-out images"
        if self.robust is not None and self.clean is not None and self.robust_interval is not None:
            low, high = (f"{100 * end:.1f}" for end in self.robust_interval)
            accuracies = f"{100 * self.robust:.1f} % robust [{low}, {high}], {100 * self.clean:.1f} % clean"
            held = f"{self.images:,} held-out images: {accuracies}"
        return f"{self.defense}, {self.threat}, epoch {self.epoch} of {len(self.history)}, {held}; {self.folder}"

    def _repr_html_(self) -> str:
        columns = [key for key in ("epoch", "loss", "clean", "robust", "seconds") if key in self.history[0]]
        lines = [[f"{row[key]:.4g}" for key in columns] for row in self.history]
        return html_table(repr(self), columns, lines, self.warnings)


@readable
def train(
    model: nn.Module | str,
    x: InHand | str,
    y: Any = None,
    threat: Threat | str | None = None,
    *,
    out: Path | str,
    recipe: str = "own-images",
    settings: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    how: TrainingOptions | None = None,
) -> Training:
    """Train a network to be robust. The same call resumes from the last checkpoint in `out`.

    A network that is given as an object is trained itself: afterwards it has the weights of the best epoch and is in
    eval mode.

        trained = atent.train(model, x, y, "linf:8/255", out="runs/mine", settings={"defense": "trades", "epochs": 20})
        atent.evaluate(trained.network, x_test, y_test, "linf:8/255")

    Args:
        model: A network that takes pixels in [0, 1] and returns logits, or the name of one (`atent list models`).
        x: Training images, as for `evaluate`: a tensor, a Dataset, a DataLoader, or the name or path of a data set.
            A part of them is held out and chooses the best epoch.
        y: The labels of a tensor, whole numbers from 0.
        threat: What to train against. Default: that of the recipe.
        out: The run folder.
        recipe: The name of a recipe or the path of a .toml file. It has every other setting.
        settings: Changes of the recipe, with dotted keys: `{"epochs": 5, "defense.steps": 10, "optimizer": "adamw"}`.
            `{"minutes": 30}` fits the schedule to half an hour.
        data_dir: The folder of a data set that is given by name.
        how: Device, checkpoints and messages. Default: the GPU if there is one.
    """
    if isinstance(y, str | Threat) and threat is None:
        raise UserError(f"y = {str(y)!r}; the threat of a training is given as threat={str(y)!r}")
    given, changes = None, dict(settings or {})
    if isinstance(x, str | Path):
        check_no_labels(x, y)
        changes["data"] = str(x)
    else:
        given = _given(model, x, y)
        changes["data"] = given.name
    if threat is not None:
        ball = Threat.parse(threat)
        check_box(ball)
        changes["threat"] = threat if isinstance(threat, str) else str(ball)
    network = model if isinstance(model, nn.Module) else None
    if network is None:
        changes["model"] = model
    else:  # without it, the network alone would be another one than the trained network
        changes.setdefault("standardize", False)
    chosen = load_recipe(recipe, changes)
    how = how or TrainingOptions(device=pick_device("auto"))
    run = fit(chosen, out, data_dir=data_dir, model=network, given=given, how=how)
    where = Path(data_dir) if data_dir else None
    return _training(run, chosen, load(run.folder, model=model, data_dir=where, device=how.device))


def _training(run: Run, recipe: Recipe, network: nn.Module) -> Training:
    history = tuple(run.history())
    best = next(row for row in reversed(history) if row["best"])
    signs = ((next((row["epoch"] for row in history if row.get(key)), None), words) for key, words in SIGNS.items())
    return Training(
        network=network,
        folder=run.folder,
        defense=str(recipe.defense["name"]),
        threat=recipe.threat,
        epoch=best["epoch"],
        images=best.get("examples", 0),
        history=history,
        warnings=tuple(f"epoch {epoch}: {words}" for epoch, words in signs if epoch is not None),
        **_accuracies(best),
    )


def _given(model: nn.Module | str, x: InHand, y: Any) -> Given:
    images = given_images(x, y)
    if isinstance(model, nn.Module):
        with logits_only(model):
            images = images.named_for(check_fits(model, images))
    return Given(images, f"{name_of(x)}{GIVEN}")


def _accuracies(best: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ("clean", "robust"):
        known = rate_of(best[key], best["examples"]) if key in best else None
        found |= {key: known and known.value, f"{key}_interval": known and (known.low, known.high)}
    return found
