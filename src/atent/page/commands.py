"""The commands that repeat a run: its training as it was recorded, its attacks and certificates from their headers."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atent.attacks import ATTACKS, make_attack
from atent.data.given import GIVEN
from atent.evaluation.estimate import Estimated
from atent.evaluation.suites import SUITES
from atent.methods import is_imported, parse_setting, written_out
from atent.models import is_built_in, is_users
from atent.page.gather import Found
from atent.storage.run import Run
from atent.zoo.index import is_zoo, name_of, read_index

TRAINS = ("atent train ", "atent ensemble ")
FLAGS = ("--compile", "--stream", "--in-memory", "--tensorboard")  # options of atent train without a value


def training_commands(found: Found) -> list[str]:
    """The recorded commands, each once. A training by a script or in Python is repeated from its recipe."""
    made = [start for start in found.starts if str(start.get("command", "")).startswith(TRAINS)]
    typed = [_as_typed(start) for start in made]
    joined = Run(found.folder).members.exists()
    if typed or joined or not found.recipe or str(found.recipe.get("data", "")).endswith(GIVEN):
        return list(dict.fromkeys(typed))
    recipe = Run(found.folder).recipe_file
    return [shlex.join(["atent", "train", str(recipe), "--out", f"{found.folder}-again"])]


def _as_typed(start: Mapping[str, Any]) -> str:
    """The command of a start; that of several processes was given to torchrun."""
    torchrun = f"torchrun --standalone --nproc-per-node {start['processes']} -m " if "processes" in start else ""
    return f"{torchrun}{start['command']}"


def evaluation_commands(found: Found) -> list[str]:
    """The commands that made the rows, each once."""
    made = []
    for group in found.groups:
        for file, attack in zip(group.files, group.attacks, strict=True):
            images = ["--save-images"] if file.with_suffix(".npz").exists() else []
            made.append(_attack(found, attack.header, [*_method(attack.header), *_sizes(attack.header), *images]))
    made += [_sample(found, one) for one in found.estimates]
    attacked = {one.header["certificates"] for one in found.brackets}
    made += [_certify(found, one.header) for one in found.certified if one.path.name not in attacked]
    for both in found.brackets:
        more = [*_method(both.header), "--draws", str(both.header["draws"])]
        made.append(_certify(found, both.certified.header, more))
    return list(dict.fromkeys(command for command in made if command))


def attack_command(found: Found) -> str:
    """The attack to begin with."""
    return shlex.join(["atent", "attack", str(found.folder), *_opened(found), "--suite", "strong", "--save-images"])


def verify_command(found: Found) -> str:
    """The command that checks the rows; empty if there are none, or no network to check them with."""
    attacked = [attack.header for group in found.groups for attack in group.attacks]
    headers = [*attacked, *(one.header for one in found.certified)]
    pretrained = bool(headers) and all(is_zoo(str(header["model"])) for header in headers)
    known = found.evaluated and (found.trained or pretrained)
    return shlex.join(["atent", "verify", str(found.folder), *_opened(found)]) if known else ""


def _opened(found: Found) -> list[str]:
    """The options that opening the network and the data of a run needs: a network of the user's, another folder."""
    model = str(found.recipe.get("model", ""))
    return [*(["--model", model] if is_users(model) else []), *_data_dir(found)]


def needs_weights(found: Found) -> bool:
    """Whether the commands need a file of weights that the folder does not have, as $WEIGHTS."""
    return any('"$WEIGHTS"' in command for command in evaluation_commands(found))


def _attack(found: Found, header: Mapping[str, Any], words: Sequence[str]) -> str:
    if not (start := _target(found, header, "attack")) or not words:
        return ""
    smooth = ["--smooth", f"{header['smooth']}", "--draws", str(header["draws"])] if "smooth" in header else []
    if not smooth and (_zoo_noise(header) or found.recipe.get("smooth")):
        smooth = ["--smooth", "0"]
    return f"{start} {shlex.join([*words, '--threat', header['threat'], *smooth, *_amp(header)])}"


def _zoo_noise(header: Mapping[str, Any]) -> float:
    """The noise that a pretrained network is attacked with by default; 0 if it is none, or not known any more."""
    known = read_index() if is_zoo(header["model"]) else {}
    entry = known.get(name_of(header["model"]))
    return entry.smooth if entry else 0.0


def _amp(header: Mapping[str, Any]) -> list[str]:
    return ["--amp", header["amp"]] if "amp" in header else []


def _sizes(header: Mapping[str, Any]) -> list[str]:
    """The images, the seed and the batch of an attack, where they are not the usual ones."""
    known = {"examples": header["examples"], "seed": header.get("seed", 0), "batch": header.get("batch", 250)}
    usual = {"seed": 0, "batch": 250}
    return [word for key, value in known.items() if value != usual.get(key) for word in (f"--{key}", str(value))]


def _sample(found: Found, one: Estimated) -> str:
    """The half-width that was reached is the goal: the same draws reach it."""
    from atent.storage.row_file import RowFile
    from atent.storage.samples import SAMPLE

    if one.path is None:
        return ""
    header = RowFile(SAMPLE, one.path).read().header
    within = math.ceil(1e4 * one.estimate.half_width) / 1e4
    options = ["--within", f"{within:g}", "--confidence", f"{one.confidence:g}", "--seed", str(header.get("seed", 0))]
    named = ["--suite", one.name] if one.name in SUITES else _method(header)
    return _attack(found, header, [*named, *options, "--batch", str(header["batch"])]) if named else ""


def _certify(found: Found, header: Mapping[str, Any], more: Sequence[str] = ()) -> str:
    start = _target(found, header, "certify")
    radii = ",".join(repr(radius) for radius, threat in header["radii"] if not threat)
    known = {key: header[key] for key in ("sigma", "n", "n0", "alpha", "examples")}
    known |= {"every": header.get("every", 1), "seed": header.get("seed", 0)}
    words = [word for key, value in known.items() for word in (f"--{key}", f"{value}")]
    words += ["--radii", radii] if radii else []
    words += [word for _, threat in header["radii"] if threat for word in ("--threat", threat)]
    words += ["--exact-n"] if header["exact"] else []
    return f"{start} {shlex.join([*words, *_amp(header), *more])}" if start else ""


def _target(found: Found, header: Mapping[str, Any], command: str) -> str:
    """The command up to its target. Empty if the rows are of objects in Python, which no command can name."""
    model, data = str(header["model"]), str(header["data"])
    if is_zoo(model):
        return shlex.join(["atent", command, model, "--data", data])
    if data.endswith(GIVEN) or not (is_built_in(model) or is_imported(model)):
        return ""
    if not found.recipe:
        if is_users(model):
            return shlex.join(["atent", command, model, "--data", data])
        return _of_weights(command, model, data)
    folder = str(found.folder) if found.trained else _trained_into(found)
    if not folder:
        return _of_weights(command, model, data)
    words = ["--model", model] if is_users(model) else []
    words += ["--data", data] if data != found.recipe.get("data") else []
    return shlex.join(["atent", command, folder, *words, *_data_dir(found)])


def _of_weights(command: str, model: str, data: str) -> str:
    return f'atent {command} "$WEIGHTS" {shlex.join(["--model", model, "--data", data])}'


def _trained_into(found: Found) -> str:
    """The folder that the last training command, or that of an ensemble, makes; empty if there is none."""
    commands = training_commands(found)
    if not commands:
        return ""
    words = shlex.split(commands[-1])
    option = "--to" if words[1] == "ensemble" else "--out"
    if option in words:
        return words[words.index(option) + 1]
    given = [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    return given[0] if given else str(Path("runs") / Path(_recipe(words)).stem)


def _recipe(words: Sequence[str]) -> str:
    """The recipe of a training command: the first word that is neither an option nor the value of one."""
    rest = iter(words[words.index("train") + 1 :])
    for word in rest:
        if not word.startswith("-"):
            return word
        if "=" not in word and word not in FLAGS:
            next(rest, "")
    return ""


def _data_dir(found: Found) -> list[str]:
    """The option --data-dir of the training, which an attack needs too."""
    for command in training_commands(found):
        for option, value in zip((words := shlex.split(command)), [*words[1:], ""], strict=True):
            if option == "--data-dir":
                return [option, value]
            if option.startswith("--data-dir="):
                return [option]
    return []


def _method(header: Mapping[str, Any]) -> list[str]:
    """The options that name an attack and its fields, without those at their defaults. Empty if they are not known."""
    settings = {key: value for key, value in header.get("attack", {}).items() if value not in (None, "")}
    if settings.get("called") in SUITES:
        return ["--suite", str(settings["called"])]
    name = str(settings.pop("name", ""))
    usual = json.loads(json.dumps(written_out({}, make_attack({"name": name})))) if name in ATTACKS else {}
    fields = [f"{key}={_plain(value)}" for key, value in settings.items() if value != usual.get(key)]
    return ["--attack", name, *(word for one in fields for word in ("--set", one))] if name else []


def _plain(value: Any) -> str:
    """A value as --set reads it: a name needs no quotes."""
    simple = isinstance(value, str) and parse_setting(f"key={value}")[1] == value
    return str(value) if simple else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items() if one is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
