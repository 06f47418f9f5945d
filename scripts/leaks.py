"""Which images a search finds whose gradients pass units that are off, and Square finds: of pretrained networks.

python scripts/leaks.py --data-dir DATA

The images are the first of those that the training of a network held out. `zero` is the share of pixels whose gradient
is exactly 0 at a random corner of the ball, `left` the images that withstand Square with 300 queries (`square`), twenty
steps that shrink from a corner with each slope of ReLU where it is off, and all of them together. Rows go to
results/leaks.jsonl.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from searches import BATCH, held_out
from torch import Tensor, nn

from atent.ascent import input_gradient
from atent.attacks import Attack, Square
from atent.data.images import Images
from atent.defenses.worst_point import worst_point
from atent.evaluation.trained import load
from atent.losses import cross_entropy
from atent.machine import prepare
from atent.network import predict
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import load_recipe
from atent.storage.files import read_rows, write_rows

ROWS = Path(__file__).parents[1] / "results" / "leaks.jsonl"
RECIPES = {"mnist-linf": "mnist-linf-zoo", "mnist-linf-wide": "mnist-linf-wide", "cifar10-linf": "cifar10-linf-zoo"}
SLOPES = (0.0, 0.001, 0.01, 0.1)
STEPS: dict[str, Any] = {"steps": 20, "reach": 13.0, "decay": 0.05, "start": "corner"}


def row_of(name: str, images: Images) -> dict[str, object]:
    model, threat = load(f"zoo:{name}").eval().requires_grad_(False), load_recipe(RECIPES[name]).make_threat()
    searches: dict[str, Attack] = {f"{slope:g}": partial(worst_point, leak=slope, **STEPS) for slope in SLOPES}
    searches["square"] = Square(queries=300)
    left: dict[str, list[Tensor]] = {}
    zero = 0.0
    with progress(name, len(images), "images") as show:
        for start in range(0, len(images), BATCH):
            x, y = images.batch(slice(start, start + BATCH))
            corner = threat.sample(x, derive(0, "corner", start), "corner")
            gradient = input_gradient(partial(loss_at, model, y), corner)
            zero += float((gradient == 0).float().mean()) * len(x) / len(images)
            for search, find in searches.items():
                point = find(model, x, y, threat, derive(0, search, start))
                left.setdefault(search, []).append((predict(model, x) == y) & (predict(model, point) == y))
            show(start + len(x))
    right = {search: torch.cat(parts) for search, parts in left.items()}
    right["all"] = torch.stack(list(right.values())).all(0)
    counts = {search: int(bits.sum()) for search, bits in right.items()}
    return {"network": name, "examples": len(images), "zero": round(zero, 4), "left": counts}


def loss_at(model: nn.Module, y: Tensor, point: Tensor) -> Tensor:
    return cross_entropy(model(point), y)


def table(rows: list[dict[str, object]]) -> str:
    columns = [f"slope {slope:g}" for slope in SLOPES]
    lines = [f"| network | images | gradient exactly 0 | {' | '.join(columns)} | Square | together |"]
    lines += [f"|---|---:|---:|{'---:|' * (len(SLOPES) + 2)}"]
    for row in rows:
        left, total = row["left"], int(str(row["examples"]))
        assert isinstance(left, dict)
        cells = [f"{100 * left[key] / total:.1f}" for key in (*(f"{slope:g}" for slope in SLOPES), "square", "all")]
        zero = f"{100 * float(str(row['zero'])):.1f} %"
        lines.append(f"| `{row['network']}` | {total:,} | {zero} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=1000)
    given = parser.parse_args()
    prepare(1)
    found = [row_of(name, held_out(RECIPES[name], given.data_dir, given.examples)) for name in given.networks]
    others = [row for row in read_rows(ROWS) if row["network"] not in given.networks] if ROWS.exists() else []
    write_rows(ROWS, [*others, *found])
    print(table([*others, *found]))
