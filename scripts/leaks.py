"""Which images a search finds whose gradients pass units that are off, and Square finds: of pretrained networks.

python scripts/leaks.py --data-dir DATA

The images are the first of those that the training of a network held out. At a random corner of the ball, `off` is the
share of inputs of the first ReLU that are not positive, `zero` that of pixels whose gradient is exactly 0, `zero_leak`
the same with a leak of .001. `left` are the images that withstand Square with 300 queries (`square`), twenty steps that
shrink from a corner with each leak, and all of them together. Rows go to results/leaks.jsonl.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from searches import BATCH, held_out
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from atent.ascent import input_gradient
from atent.attacks import Attack, Square
from atent.data.images import Images
from atent.defenses.worst_point import worst_point
from atent.evaluation.trained import load
from atent.leak import leaky_gradients
from atent.losses import cross_entropy
from atent.machine import prepare
from atent.network import predict
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import load_recipe
from atent.storage.files import read_rows, write_rows

ROWS = Path(__file__).parents[1] / "results" / "leaks.jsonl"
RECIPES = {"mnist-linf": "mnist-linf-zoo", "mnist-linf-wide": "mnist-linf-wide", "cifar10-linf": "cifar10-linf-zoo"}
LEAKS = (0.0, 0.001, 0.01, 0.1)
STEPS: dict[str, Any] = {"steps": 20, "reach": 13.0, "decay": 0.05, "start": "corner"}


class FirstUnits(TorchFunctionMode):
    """Records how many inputs of the first ReLU in the block are not positive."""

    off: float | None = None

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.off is None and function in (torch.relu, functional.relu):
            self.off = float((args[0] <= 0).float().mean())
        return function(*args, **(kwargs or {}))


def row_of(name: str, images: Images) -> dict[str, object]:
    model, threat = load(f"zoo:{name}").eval().requires_grad_(False), load_recipe(RECIPES[name]).make_threat()
    searches: dict[str, Attack] = {f"{leak:g}": partial(worst_point, leak=leak, **STEPS) for leak in LEAKS}
    searches["square"] = Square(queries=300)
    left: dict[str, list[Tensor]] = {}
    sums = {"off": 0.0, "zero": 0.0, "zero_leak": 0.0}
    with progress(name, len(images), "images") as show:
        for start in range(0, len(images), BATCH):
            x, y = images.batch(slice(start, start + BATCH))
            corner = threat.sample(x, derive(0, "corner", start), "corner")
            with FirstUnits() as units:
                model(corner)
            sums["off"] += (units.off or 0.0) * len(x)
            for name_of, leak in (("zero", 0.0), ("zero_leak", 0.001)):
                with leaky_gradients(leak):
                    gradient = input_gradient(partial(loss_at, model, y), corner)
                sums[name_of] += float((gradient == 0).float().mean()) * len(x)
            for search, find in searches.items():
                point = find(model, x, y, threat, derive(0, search, start))
                left.setdefault(search, []).append((predict(model, x) == y) & (predict(model, point) == y))
            show(start + len(x))
    right = {search: torch.cat(parts) for search, parts in left.items()}
    right["all"] = torch.stack(list(right.values())).all(0)
    shares = {kind: round(total / len(images), 4) for kind, total in sums.items()}
    counts = {search: int(bits.sum()) for search, bits in right.items()}
    return {"network": name, "examples": len(images), **shares, "left": counts}


def loss_at(model: nn.Module, y: Tensor, point: Tensor) -> Tensor:
    return cross_entropy(model(point), y)


def table(rows: list[dict[str, object]]) -> str:
    measured = ("off", "zero", "zero_leak")
    columns = ["units off", "gradient 0", "with a leak", *(f"leak {leak:g}" for leak in LEAKS), "Square", "together"]
    lines = [f"| network | images | {' | '.join(columns)} |", f"|---|---:|{'---:|' * len(columns)}"]
    for row in rows:
        left, total = row["left"], int(str(row["examples"]))
        assert isinstance(left, dict)
        cells = [f"{100 * float(str(row[kind])):.1f} %" for kind in measured]
        cells += [f"{100 * left[key] / total:.1f}" for key in (*(f"{leak:g}" for leak in LEAKS), "square", "all")]
        lines.append(f"| `{row['network']}` | {total:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=1000)
    given = parser.parse_args()
    prepare(1)
    found = [
        row_of(name, held_out(load_recipe(RECIPES[name]), given.data_dir, given.examples)) for name in given.networks
    ]
    others = [row for row in read_rows(ROWS) if row["network"] not in given.networks] if ROWS.exists() else []
    write_rows(ROWS, [*others, *found])
    print(table([*others, *found]))
