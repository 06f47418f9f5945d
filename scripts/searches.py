"""How high a loss the search of a defense reaches: cross-entropy at its point, by number, length, decay of the steps.

python scripts/searches.py --data-dir DATA

For each pretrained network the images are the first of those that its training held out. `reach` is the sum of the
steps in radii, `decay` the last step over the first. Rows go to results/searches.jsonl.
"""

import argparse
from pathlib import Path

from atent.ascent import ascend, last
from atent.data.dataset import load
from atent.data.images import Images
from atent.losses import cross_entropy
from atent.machine import prepare
from atent.models.weights import load_weights
from atent.progress import progress
from atent.randomness import derive
from atent.recipe import Recipe, load_recipe
from atent.storage.files import read_rows, write_rows
from atent.training.start import make_model, split
from atent.zoo.index import weights_file

ROWS = Path(__file__).parents[1] / "results" / "searches.jsonl"
# steps, reach, decay
EQUAL = [(3, 1.8), (3, 4.0), (5, 2.0), (5, 4.0), (5, 6.0), (10, 2.0), (10, 4.0), (10, 8.0), (40, 2.5), (40, 8.0)]
SHRINKING = [(3, 2.0, 0.4), (5, 4.6, 0.125), (10, 6.8, 0.05)]
SEARCHES = sorted([(steps, reach, 1.0) for steps, reach in EQUAL] + SHRINKING)
BATCH = 100


def held_out(recipe: Recipe, data_dir: Path | None, examples: int) -> Images:
    """The first of the images that the training of this recipe held out."""
    images = load(recipe.data, "train", data_dir)
    return split(recipe, images)[1].take(slice(examples))


def rows_of(name: str, images: Images) -> list[dict[str, object]]:
    recipe = load_recipe(f"{name}-zoo")
    threat, model = recipe.make_threat(), make_model(recipe, images)
    load_weights(model, weights_file(f"zoo:{name}"))
    model.eval().requires_grad_(False)
    rows: list[dict[str, object]] = []
    with progress(name, len(SEARCHES), "searches") as show:
        for steps, reach, decay in SEARCHES:
            loss = right = 0.0
            for start in range(0, len(images), BATCH):
                x, y = images.batch(slice(start, start + BATCH))
                settings = {"steps": steps, "reach": reach, "decay": decay, "generator": derive(0, "search", start)}
                point = last(ascend(lambda p, y=y: cross_entropy(model(p), y), x, threat, **settings))  # type: ignore[arg-type,misc]
                logits = model(point)
                loss += float(cross_entropy(logits, y).sum()) / len(images)
                right += float((logits.argmax(1) == y).sum()) / len(images)
            row = {"network": name, "steps": steps, "reach": reach, "decay": decay, "examples": len(images)}
            rows.append({**row, "loss": round(loss, 4), "accuracy": round(right, 4)})
            show(len(rows))
    return rows


def table(rows: list[dict[str, object]]) -> str:
    networks = list(dict.fromkeys(str(row["network"]) for row in rows))
    lines = [f"| steps | reach | decay | {' | '.join(f'`{name}`' for name in networks)} |"]
    lines += [f"|---:|---:|---:|{'---:|' * len(networks)}"]
    for steps, reach, decay in SEARCHES:
        found = [row for row in rows if (row["steps"], row["reach"], row["decay"]) == (steps, reach, decay)]
        cells = [f"{row['loss']:.4f}, {100 * float(str(row['accuracy'])):.1f}" for row in found]
        lines.append(f"| {steps} | {reach:g} | {decay:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["mnist-linf", "mnist-l2", "cifar10-linf"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=500)
    given = parser.parse_args()
    prepare(1)
    images = {name: held_out(load_recipe(f"{name}-zoo"), given.data_dir, given.examples) for name in given.networks}
    found = [row for name in given.networks for row in rows_of(name, images[name])]
    others = [row for row in read_rows(ROWS) if row["network"] not in given.networks] if ROWS.exists() else []
    write_rows(ROWS, [*others, *found])
    print(table(found))
