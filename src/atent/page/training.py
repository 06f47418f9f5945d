"""The sections of a page on how runs were made: training, settings, cost, environment and commands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atent.errors import UserError
from atent.evaluation.trained import recipe_inside
from atent.page.commands import evaluation_commands, needs_weights, training_commands
from atent.page.curves import training_curves
from atent.page.gather import Found
from atent.page.parts import Cell, Commands, Fold, Note, Part, Rows, Table
from atent.storage.row_format import Cost
from atent.zoo.index import entry_of, is_zoo, weights_file

LINES = 200  # of the training's log in a page
FLAGS = {
    "collapsed": "robust accuracy on held-out images collapsed",
    "masked": "attacks without gradients broke held-out images that attacks with gradients had failed on",
}


def flat(table: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """Every setting with its dotted key, as text."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{start}{key}.")
        else:
            found[f"{start}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def summary(recipe: Mapping[str, Any]) -> str:
    """What was trained, in a sentence."""
    names = {key: _named(recipe.get(key)) for key in ("defense", "optimizer", "schedule")}
    trained = f"{recipe.get('model', 'a network')} on {recipe.get('data', 'unknown data')}"
    against = f"against {recipe['threat']} " if recipe.get("threat") else ""
    return (
        f"{trained}, trained {against}with the defense {names['defense']}: {recipe.get('epochs', '?')} epochs of "
        f"{names['optimizer']}, schedule {names['schedule']}, seed {recipe.get('seed', 0)}."
    )


def _named(table: Any) -> str:
    return str(table.get("name", "unknown")) if isinstance(table, Mapping) else str(table or "unknown")


def training_parts(key: str, found: Found) -> list[Part]:
    """What was trained and how, the curves, and behind folds the log and every setting."""
    if not found.recipe and not found.history:
        if stored := _pretrained(found):
            return [Note(f"A pretrained network of the package: {summary(stored.recipe)}"), *setting_folds(stored)]
        return [Note("The folder has no record of the training: its rows are of weights from elsewhere.")]
    parts: list[Part] = [Note(summary(found.recipe))] if found.recipe else []
    done, asked = len(found.history), found.recipe.get("epochs")
    if isinstance(asked, int) and done < asked:
        parts.append(Note(f"{done} of {asked} epochs are finished.", "warning" if not found.trained else ""))
    parts += filter(None, [training_curves(key, found.history)])
    if found.history:
        parts.append(Fold("The log, epoch by epoch", [_log(found.history)]))
    return [*parts, *setting_folds(found)]


def _pretrained(found: Found) -> Found | None:
    """The same with the recipe of the pretrained network, if all rows are of its weights."""
    attacked = [attack.header for group in found.groups for attack in group.attacks]
    headers = [*attacked, *(one.header for one in found.certified)]
    networks = {(str(header["model"]), header["weights"]) for header in headers}
    if len(networks) != 1 or not is_zoo((named := networks.pop())[0]):
        return None
    try:
        recipe = recipe_inside(weights_file(named[0])) if entry_of(named[0]).weights == named[1] else None
    except UserError:  # it is not in the zoo any more
        return None
    return replace(found, recipe=recipe.model_dump(mode="json")) if recipe else None


def setting_folds(found: Found) -> list[Part]:
    """Every setting and the environment, behind folds."""
    folds: list[Part] = []
    if found.recipe:
        rows = [[key, value] for key, value in flat(found.recipe).items()]
        table = _two_columns(f"The recipe of {found.name}", "setting", rows)
        folds.append(Fold("Every setting of the training", [table]))
    if found.starts:
        rows = [[key, _text(value)] for key, value in found.starts[-1].items()]
        times = f", of the last of {len(found.starts)} starts" if len(found.starts) > 1 else ""
        table = _two_columns(f"The environment of {found.name}{times}", "what", rows)
        folds.append(Fold("Versions and machine", [table]))
    return folds


def _two_columns(caption: str, first: str, rows: Sequence[Sequence[str]]) -> Table:
    return Table.of(caption, [first, "value"], rows, left=2)._replace(sortable=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _log(history: Sequence[Mapping[str, Any]]) -> Table:
    shown = history if len(history) <= LINES else [*history[: LINES // 2], *history[-LINES // 2 :]]
    keys = [key for key in dict.fromkeys(key for row in shown for key in row) if key != "examples"]
    rows = [[_log_cell(key, row.get(key)) for key in keys] for row in shown]
    left = "" if len(history) <= LINES else f"The first and the last {LINES // 2} of {len(history)} epochs."
    return Table.of("The log of the training; accuracies in %", keys, rows, note=left)


def _log_cell(key: str, value: Any) -> Cell:
    if isinstance(value, bool):
        return Cell("yes" if value else "")
    if key in ("clean", "robust", "train_robust", "train_clean") and isinstance(value, int | float):
        return Cell(f"{100 * value:.2f}", value)
    return (
        Cell(f"{value:.4g}", value) if isinstance(value, int | float) else Cell("" if value is None else _text(value))
    )


def training_warnings(found: Found) -> list[str]:
    """The signs of a failed training that the log has."""
    return [
        f"training, epoch {next(row['epoch'] for row in found.history if row.get(flag))}: {words}"
        for flag, words in FLAGS.items()
        if any(row.get(flag) for row in found.history)
    ]


def cost_table(runs: Sequence[Found]) -> list[Part]:
    """The time of the training, and the passes and the time of each attack and certification."""
    rows: Rows = []
    for found in runs:
        if found.history:
            seconds = sum(row.get("seconds", 0.0) for row in found.history)
            rows.append([found.name, f"training, {len(found.history)} epochs", "", "", _seconds(seconds)])
        costs = [
            (f"{title} {group.threat}", attack.cost)
            for group in found.groups
            for title, attack in zip(group.titles, group.attacks, strict=True)
        ]
        costs += [(f"{one.name} {one.threat}, sample", one.cost) for one in found.estimates]
        costs += [(f"certificates, sigma {one.header['sigma']:g}", one.cost) for one in found.certified]
        costs += [(f"{one.header['label']} on certified images", one.cost) for one in found.brackets]
        rows += [[found.name, words, *_spent(cost)] for words, cost in costs]
    columns = ["network", "work", "images forward", "images backward", "seconds"]
    note = "Times are of the machine that did the work; passes are counted."
    return [Table.of("What it took", columns, rows, left=2, note=note).compact(0)] if rows else []


def _spent(cost: Cost) -> list[Cell]:
    if cost == Cost():  # rows of the first versions
        return [Cell("not recorded")] * 3
    return [*(Cell(f"{count:,}", count) for count in (cost.forward, cost.backward)), _seconds(cost.seconds)]


def _seconds(seconds: float) -> Cell:
    return Cell(f"{seconds:,.1f}", seconds)


def repeat_parts(found: Found) -> list[Part]:
    """The commands that repeat training and evaluation."""
    training, evaluation = training_commands(found), evaluation_commands(found)
    parts: list[Part] = [Commands("Train the network again:", training)] if training else []
    if needs_weights(found):
        parts.append(Note("The weights are not in the folder: set WEIGHTS to the path of their file first."))
    if evaluation:
        parts.append(Commands("Make the rows again, image by image:", evaluation))
    if not (training or evaluation):
        parts.append(Note("The run was made in Python, of objects that no command can name."))
    return parts
