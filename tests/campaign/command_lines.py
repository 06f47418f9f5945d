"""Command lines: every command with right, wrong, absurd, repeated and missing options, on a small run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from atent.cli import app
from atent.data import download
from campaign.inside import command
from campaign.toy_run import NETWORK, prepare_run
from campaign.values import NUMBERS, WORDS, as_text, strange
from campaign.verdict import Draw, Kind, Outcome, faults_of

TARGETS = ["run", "run/best.safetensors", "run/last.safetensors", "recipe.toml", "run/recipe.json", "nothing",
           "data.npz", "demo", "pgd", "atent", "run/attack", "mnist", "table2", "figure1", "all", NETWORK,
           "campaign.networks:exits", "campaign.networks:raises", "campaign.networks:answer"]  # fmt: skip
SETTINGS = ["steps=1", "steps=0", "steps=10000000", "restarts=2", "epochs=1", "defense.steps=1", "batch=7", "x=1",
            "steps", "=", "steps=", "defense=trades", "optimizer.lr=1e308", "threat=l2:1",
            "defense.steps=1000000000000"]  # fmt: skip
GOOD: dict[str, list[Any]] = {
    "--model": [NETWORK, "small-cnn"], "--data": ["data.npz", "mnist-small", "run"],
    "--device": ["cpu", "cuda", "auto"],
    "--threads": [1, 2], "--out": ["out", "run", "recipe.toml", "data.npz/x"], "--to": ["to", "run"],
    "--amp": ["bf16", "off"],
    "--threat": ["linf:0.1", "l2:0.5", "linf:8"], "--attack": ["pgd", "square", "apgd", "smooth-pgd", "deepfool"],
    "--suite": ["quick", "paper", "strong"], "--sigma": [0.25], "--n": [100, 1000], "--n0": [10], "--radii": ["0,.1"],
    "--examples": [1, 5], "--batch": [1, 100], "--set": SETTINGS, "--weights": ["run", "run/best.safetensors"],
    "--checkpoint-batches": [1], "--minutes": [0.001], "--against": ["run"], "--reuse": ["run"], "--license": ["mit"],
    "--on": ["a100", "all"], "--certify": [0.25], "--within": [10], "--claim": [50], "--confidence": [0.9],
}  # fmt: skip
NEVER = {("reproduce", "--budget"), ("reproduce", "--out")}  # hours of work, or none of interest


def prepare(place: Path) -> None:
    prepare_run(place)


def commands() -> Iterator[tuple[list[str], Any]]:
    """The words of each command, and what the command-line library knows of it."""
    whole: Any = typer.main.get_command(app)
    for name, one in whole.commands.items():
        if hasattr(one, "commands"):
            yield from (([name, inner], two) for inner, two in one.commands.items())
        else:
            yield [name], one


COMMANDS = list(commands())


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    download.DOWNLOADERS |= {name: {"mirror": _unreachable} for name in download.DOWNLOADERS}
    words = drawn(draw)
    ended = command(*words, patience=0.4)
    faults = faults_of(ended)
    return Outcome(f"atent {' '.join(map(repr, words))[:1500]}", tuple(faults))


def drawn(draw: Draw) -> list[str]:
    """A command line."""
    if draw.random() < 0.03:
        return [as_text(strange(draw))[:500] for _ in range(draw.choice([0, 1, 2, 5]))]
    path, one = draw.choice(COMMANDS)
    words = list(path)
    arguments = [two for two in one.params if two.param_type_name == "argument"]
    options = [two for two in one.params if two.param_type_name == "option" and two.name not in ("help",)]
    for argument in arguments:
        count = draw.choice([0, 1, 1, 1, 1, 1, 1, 2]) if argument.nargs == 1 else draw.choice([0, 1, 2, 2, 3])
        words += [draw.choice(TARGETS) if draw.random() < 0.9 else draw.choice(WORDS) for _ in range(count)]
    given = [two for two in options if two.required and draw.random() < 0.95]
    given += [draw.choice(options) for _ in range(draw.choice([0, 1, 1, 2, 3, 6]))] if options else []
    for option in given:
        words += _option(draw, path[0], option)
    if path == ["plan"]:
        words.append("--no-probe")
    if path == ["reproduce"]:
        words.append("--status")
    if draw.random() < 0.05:
        words.insert(draw.randrange(len(words) + 1), draw.choice(WORDS))
    if draw.random() < 0.1 and words:
        words.pop(draw.randrange(len(words)))
    return words


def _option(draw: Draw, verb: str, option: Any) -> list[str]:
    flag = draw.choice([*option.opts, *option.secondary_opts])
    if (verb, flag) in NEVER:
        return []
    if option.is_flag:
        return [flag] if draw.random() < 0.95 else [f"{flag}=1"]
    what = draw.random()
    if what < 0.5 and flag in GOOD:
        value = str(draw.choice(GOOD[flag]))
    elif what < 0.8:
        value = as_text(draw.choice(NUMBERS)) if draw.random() < 0.97 else "9" * 5000
    else:
        value = as_text(strange(draw))[:2000].replace("\x00", "")
    if draw.random() < 0.05 and flag == "--set":
        value = "epochs=" + "[" * 3000
    return [f"{flag}={value}"] if value.startswith("-") or draw.random() < 0.3 else [flag, value]


def _unreachable(missing: list[str], work: Path) -> Any:
    raise OSError(f"no network for {missing} in {work}")


COMMAND_LINES = Kind("command lines", play, prepare, batch=100, full=1000, short=60)
