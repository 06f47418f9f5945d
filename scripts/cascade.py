"""Which attacks earn their passes: each candidate on the images that PGD-40 nearly breaks, then the cheapest order.

python scripts/cascade.py measure runs/demo --data-dir DATA
python scripts/cascade.py measure runs/demo --data-dir DATA --only square
python scripts/cascade.py measure trades-mnist-smallcnn.pt --called trades-authors --data-dir DATA
python scripts/cascade.py table

The images are the last of those that the run held out of training; for a weights file the last of MNIST's training
images, on which its network may have been trained. PGD-40 attacks them all. Each candidate then attacks the `--hardest`
survivors, those whose margin is smallest at PGD-40's last point: most that can be broken are among them.

`measure` appends a row per candidate to results/cascade.jsonl and skips rows that are there. `table` orders the
candidates greedily, by passes per additional broken image on all survivors of those before.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure_or_table import run
from torch import Tensor, nn

from atent.attacks import make_attack
from atent.attacks.protocols import PerImage, title_of
from atent.data.dataset import load
from atent.data.images import Images
from atent.evaluation.target import open_network
from atent.losses import margin
from atent.network import answers, counted, predict
from atent.randomness import derive
from atent.recipe import recipe_of
from atent.storage.run import Run
from atent.threat import Threat
from atent.training.start import split

ROWS = Path(__file__).parents[1] / "results" / "cascade.jsonl"
FIRST: dict[str, Any] = {"name": "pgd", "steps": 40}
LARGE = {"name": "pgd", "steps": 40, "restarts": 5, "reach": 10.0}
CANDIDATES: list[dict[str, Any]] = [
    {"name": "apgd"},
    {"name": "square", "queries": 1000},
    {"name": "apgd", "loss": "dlr"},
    {**LARGE, "loss": "margin"},
    {"name": "apgd", "loss": "dlr-targeted", "targets": 3},
    LARGE,
    {"name": "apgd", "loss": "dlr-targeted"},
    {"name": "square"},
    {**LARGE, "loss": "dlr"},
    {"name": "apgd", "restarts": 5},
    {"name": "pgd", "steps": 40, "restarts": 5},
    {"name": "square", "queries": 2500},
    {"name": "square", "patience": 5.0},
]
Row = dict[str, Any]


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def held_out(network: str, data_dir: Path, count: int) -> Images:
    recipe = recipe_of(Run(Path(network))) if Path(network).is_dir() else None
    images = load(recipe.data if recipe else "mnist", "train", data_dir)
    if recipe:
        _, images = split(recipe, images)
    return images.take(slice(len(images) - count, len(images)))


def attacked(settings: Row, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> tuple[Tensor, Row]:
    """The margin of each image under an attack, positive where broken; what the attack is called and costs."""
    attack = make_attack(settings)
    began = time.process_time()
    with counted(model) as passes:
        if isinstance(attack, PerImage):
            x_adv = attack.each(model, x, y, threat, [derive(0, "cascade", k) for k in range(len(x))])
        else:
            x_adv = attack(model, x, y, threat, derive(0, "cascade"))
    cost = {"forward": passes.forward, "backward": passes.backward, "seconds": round(time.process_time() - began, 1)}
    return margin(answers(model, x_adv), y), {"attack": title_of(attack), "settings": settings, **cost}


def measure(given: argparse.Namespace) -> None:
    images = held_out(given.network, given.data_dir, given.images)
    x, y = images.batch(slice(len(images)))
    threat, model = Threat.parse(given.threat), open_network(given.network, images.shape, "small-cnn")
    name = given.called or Path(given.network).stem
    known = {row["attack"] for row in rows() if row["network"] == name}
    index = torch.arange(len(x))[predict(model, x) == y]
    for settings in [FIRST, *(one for one in CANDIDATES if given.only in (None, one["name"]))]:
        if settings != FIRST and title_of(make_attack(settings)) in known:
            continue
        margins, cost = attacked(settings, model, x[index], y[index], threat)
        row = {"network": name, "threat": str(threat), "images": len(x), "attacked": len(index), **cost}
        row["broken"] = index[margins > 0].tolist()
        if row["attack"] not in known:
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(row["attack"], len(row["broken"]), f"{row['seconds']} s", flush=True)
        if settings == FIRST:
            order = margins.argsort(descending=True)
            index = index[order[margins[order] <= 0]][: given.hardest]


def greedy(found: list[Row]) -> Iterator[tuple[Row, int, float, int]]:
    """The rows in order, each with the images it newly breaks, the passes that takes, and the images left.

    A candidate's passes are its mean per attacked image, times the survivors of those before it.
    """
    first, *rest = found
    survivors = first["attacked"] - len(first["broken"])
    yield first, len(first["broken"]), first["forward"] + first["backward"], survivors
    broken: set[int] = set()
    while rest:
        gains = {id(row): len(set(row["broken"]) - broken) for row in rest}
        price = {id(row): (row["forward"] + row["backward"]) / row["attacked"] * survivors for row in rest}
        row = min(rest, key=lambda row: (price[id(row)] / max(gains[id(row)], 1e-9), price[id(row)]))
        rest.remove(row)
        broken |= set(row["broken"])
        survivors -= gains[id(row)]
        yield row, gains[id(row)], price[id(row)], survivors


def table() -> None:
    everything = rows()
    for network in dict.fromkeys(row["network"] for row in everything):
        found = [row for row in everything if row["network"] == network]
        count = found[0]["images"]
        print(f"\n{network}, {found[0]['threat']}, {count} images\n")
        print("| attack | breaks alone | breaks more | passes | per more | left |\n|---|---:|---:|---:|---:|---:|")
        for row, gain, passes, left in greedy(found):
            each = f"{passes / gain:,.0f}" if gain else "-"
            alone = len(row["broken"])
            print(f"| {row['attack']} | {alone} | {gain} | {passes:,.0f} | {each} | {100 * left / count:.1f} |")


def add_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("network")
    one.add_argument("--called", help="the name in the table")
    one.add_argument("--threat", default="linf:0.3")
    one.add_argument("--data-dir", type=Path, required=True)
    one.add_argument("--images", type=int, default=300)
    one.add_argument("--hardest", type=int, default=300)
    one.add_argument("--only", help="an attack's name: measure only candidates of that name")


if __name__ == "__main__":
    run(__doc__, add_arguments, measure, table)
