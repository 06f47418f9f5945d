"""Does the drift of the paper's Eq. 12 keep a chain near x? Where chains end that pull back one coordinate per step.

python scripts/one_coordinate.py --data-dir DATA

Eq. 12 climbs L(x') - gamma/2 |x' - x| with the linf norm, whose gradient has one coordinate: that of the largest
difference. It is part of the objective here; the inner loop is that of all chains. The steps are the paper's (MNIST, 40
of .01, noise 1e-3, gamma 3.33) from a corner of the ball, with the raw gradient as it is printed and with its sign as
in the authors' runs. The network is `zoo:mnist-linf`, the images are those that its training held out. Rows go to
results/one-coordinate.jsonl.
"""

import argparse
from pathlib import Path

from searches import BATCH, held_out
from torch import Tensor, nn

from atent.ascent import ascend, last
from atent.data.images import Images
from atent.losses import cross_entropy
from atent.machine import prepare
from atent.methods import Direction, Projection
from atent.models.weights import load_weights
from atent.randomness import derive
from atent.recipe import load_recipe
from atent.storage.files import write_rows
from atent.training.start import make_model
from atent.zoo.index import weights_file

ROWS = Path(__file__).parents[1] / "results" / "one-coordinate.jsonl"
NETWORK, GAMMA = "mnist-linf", 3.33
CASES: tuple[tuple[Direction, float, Projection], ...] = (  # direction, gamma, projection
    ("raw", 0.0, "never"),
    ("raw", GAMMA, "never"),
    ("steepest", 0.0, "never"),
    ("steepest", GAMMA, "never"),
    ("steepest", 0.0, "last"),
)


def penalized(model: nn.Module, x: Tensor, y: Tensor, point: Tensor, gamma: float) -> Tensor:
    """What Eq. 12 climbs, for each image."""
    return cross_entropy(model(point), y) - gamma / 2 * (point - x).abs().flatten(1).amax(1)


def row_of(
    model: nn.Module, images: Images, direction: Direction, gamma: float, project: Projection
) -> dict[str, object]:
    """Means over images of what the end of a chain has: linf distance, pixels outside the ball in percent, loss."""
    threat = load_recipe(f"{NETWORK}-zoo").make_threat()
    size = outside = loss = 0.0
    for start in range(0, len(images), BATCH):
        x, y = images.batch(slice(start, start + BATCH))
        end = last(
            ascend(
                lambda point, x=x, y=y: penalized(model, x, y, point, gamma),  # type: ignore[misc]
                x,
                threat,
                steps=40,
                step=0.01,
                start="corner",
                noise=1e-3,
                direction=direction,
                project=project,
                generator=derive(0, "one-coordinate", start),
            )
        )
        apart = (end - x).abs().flatten(1)
        size += float(apart.amax(1).sum()) / len(images)
        outside += 100 * float((apart > threat.eps + 1e-6).float().mean(1).sum()) / len(images)
        loss += float(cross_entropy(model(end), y).sum()) / len(images)
    what: dict[str, object] = {"direction": direction, "gamma": gamma, "project": project, "examples": len(images)}
    return what | {"size": round(size, 4), "outside": round(outside, 2), "loss": round(loss, 4)}


def table(rows: list[dict[str, object]]) -> str:
    head = "| direction | gamma | projected | linf distance | pixels outside, % | loss |\n|---|---:|---|---:|---:|---:|"
    line = "| {direction} | {gamma:g} | {project} | {size:.3f} | {outside:.1f} | {loss:.3f} |"
    return "\n".join([head, *(line.format_map(row) for row in rows)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows; replaced")
    given = parser.parse_args()
    prepare(1)
    recipe = load_recipe(f"{NETWORK}-zoo")
    images = held_out(recipe, given.data_dir, given.examples)
    network = make_model(recipe, images)
    load_weights(network, weights_file(f"zoo:{NETWORK}"))
    network.eval().requires_grad_(False)
    found = [row_of(network, images, *case) for case in CASES]
    write_rows(given.rows, found)
    print(table(found))
