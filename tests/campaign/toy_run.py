"""A run of a fraction of a second: 36 images of 6 x 6 pixels, a linear network. Templates for the cases."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from campaign.inside import command
from campaign.verdict import Ended

NETWORK = "campaign.networks:flat"
RECIPE: dict[str, Any] = {
    "data": "data.npz",
    "model": NETWORK,
    "threat": "linf:0.1",
    "epochs": 2,
    "batch": 12,
    "validation": 8,
    "defense": {"name": "pgd-at", "steps": 2},
    "optimizer": {"name": "sgd", "lr": 0.05},
    "monitor": {"name": "pgd", "steps": 2},
    "monitor_examples": 8,
}
ATTACK = ["attack", "run", "--set", "steps=2", "--threads", "1", "--model", NETWORK, "--device", "cpu"]
CERTIFY = ["certify", "run", "--sigma", ".25", "--n", "100", "--n0", "10", "--radii", "0,.1", "--threads", "1"]
CERTIFY += ["--model", NETWORK, "--device", "cpu"]


def write_data(path: Path, count: int = 36, seed: int = 0) -> Path:
    """Images whose class can be learned: a bright corner each."""
    source = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = source.integers(0, 120, (count, 6, 6), dtype=np.uint8)
    for k, label in enumerate(y):
        x[k, 2 * label : 2 * label + 2] += 100
    np.savez(path, x=x, y=y, x_test=x[:12], y_test=y[:12])
    return path


def train(*more: str) -> list[str]:
    return [
        "train",
        "recipe.toml",
        "--out",
        "run",
        "--threads",
        "1",
        "--device",
        "cpu",
        "--checkpoint-batches",
        "1",
        *more,
    ]


def prepare_run(place: Path) -> None:
    """A trained run in `place`/run, attacked with saved images, sampled, certified, bracketed and checked."""
    place.mkdir(parents=True, exist_ok=True)
    write_data(place / "data.npz")
    (place / "recipe.toml").write_text(to_toml(RECIPE))
    os.chdir(place)
    done(command(*train("--set", "recoveries=1")))
    shutil.copy("run/last.safetensors", "run/good.safetensors")
    done(command(*ATTACK, "--save-images", "--batch", "4"))
    done(command(*ATTACK, "--checks", "--threat", "l2:0.5"))
    done(command(*ATTACK[:2], *ATTACK[4:], "--suite", "quick", "--within", "20"))
    done(command(*CERTIFY, "--attack", "smooth-pgd", "--set", "steps=1", "--draws", "2"))
    for left in place.rglob(".*.lock"):
        left.unlink()


def done(ended: Ended) -> None:
    """Refuse a command that failed where none may."""
    if ended.code != 0:
        raise RuntimeError(f"exit code {ended.code}: {ended.err}")


def to_toml(table: dict[str, Any]) -> str:
    """A table as TOML: single values first, then tables."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(f"\n[{_key(key)}]")
            lines += [f"{_key(name)} = {_value(one)}" for name, one in value.items()]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        inside = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value)
        return f'"{inside}"'
    if isinstance(value, list | tuple):
        return _list(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + "}"
    return str(value) if isinstance(value, int) and abs(value) < 10**300 else _digits(value)


def _list(value: list[Any] | tuple[Any, ...]) -> str:
    """Deep ones without recursion."""
    opened = ""
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        opened, value = opened + "[", value[0]
    return opened + "[" + ", ".join(map(_value, value)) + "]" + "]" * len(opened)


def _digits(value: Any) -> str:
    return str(value) if not isinstance(value, int) else "1" + "0" * 400
