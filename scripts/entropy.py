"""What each part of a training buys: arms of equal cost, each with its seeds, evaluated on held-out images.

python scripts/entropy.py train k10 k3 k3+t0.5 --seeds 0 1 --lr 0.03 0.05 --minutes 20 --data-dir DATA
python scripts/entropy.py train few-steps --seeds 2 --data-dir DATA         all arms of a group, in its order
python scripts/entropy.py status
python scripts/entropy.py table --against k10
python scripts/entropy.py table --together --against k10@20                 also arms with other budgets

An arm is a training and parts that are added to it with `+`: k3+t0.5+awp. `entropy_arms.py` lists them as changes of a
recipe, and as groups the arms of each question. `train` runs one after the other in one thread: for each seed, for each
arm in the order given, for each learning rate. Of several learning rates only the one whose best epoch is better on the
monitor's images is evaluated further; the others have rows, too. Run the same command to resume, also after a kill: the
training resumes from its last checkpoint and the evaluation after its last batch. Processes with different arms can
share the work. Each network appends a row to results/entropy.jsonl.

Budget: every arm has the same number of passes, which stands for the same time. `--minutes` are minutes of one core
with 1,200 passes a second (`small-cnn`), 900 (`lenet5`, `wide-cnn`) or 2,100 (`lenet`): gradients with respect to an
image, batch 128, the other core busy. A gradient with respect to the weights counts 1.48 passes, a forward pass alone
.41, and a step 1.14 times its passes (`equal_budget.py`). The number of images and epochs follows. The evaluation after
each epoch is not counted. Arms with the part 2k have 40 epochs of 2,000 images instead, whatever the minutes. Trainings
run in bfloat16, which takes about half of the time on a processor that has it; the part float32 does not.

Evaluation: the best epoch (2k: also the last) by PGD-40 and by the attacks of `strong` on 300 images that no arm of the
seed trains on and that the choice of the epoch does not use. `strong` takes 2 to 12 minutes of one core. Smoothed
networks are certified instead (n 10,000).
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from entropy_arms import GROUPS, SIGMA, Job, changes_of, recipe_for
from entropy_table import Row, mean, table
from equal_budget import time_of
from torch import nn

from atent.attacks import make_attack
from atent.data.dataset import load
from atent.data.images import Images, evaluation_batches, hold_out
from atent.errors import Interrupted, UserError
from atent.evaluation.attack import attack_batch
from atent.evaluation.suites import suite_attacks
from atent.machine import prepare
from atent.models.weights import load_weights
from atent.randomness import derive
from atent.recipe import Recipe, recipe_of
from atent.smoothing.counting import Trial, run_cases
from atent.smoothing.stopping import Smoothing
from atent.storage.files import read_rows, write_rows
from atent.storage.run import Run
from atent.training.fit import fit
from atent.training.start import make_model

ROWS = Path(__file__).parents[1] / "results" / "entropy.jsonl"
RADII, DRAWS = (0.0, 0.5, 1.0, 1.5), 10_000
EXAMPLES, BATCH = 300, 50


def jobs(given: argparse.Namespace) -> Iterator[list[Job]]:
    """In the order of the work: those that differ only in the learning rate together."""
    arms = [arm for name in given.arms for arm in GROUPS.get(name, [name])]
    for seed in given.seeds:
        for arm in dict.fromkeys(arms):
            own = changes_of(arm)[1].get("optimizer.lr")
            yield [Job(arm, given.minutes, lr, seed, given.data) for lr in (given.lr if own is None else [own])]


def train(given: argparse.Namespace) -> None:
    planned = list(jobs(given))
    images = load(given.data, "train", given.data_dir)
    for rivals in planned:
        if all(done(given.rows, job) for job in rivals):
            print(f"{', '.join(job.name for job in rivals)}: done", flush=True)
            continue
        runs = {job: trained(job, len(images), given.out, given.data_dir) for job in rivals}
        best = max(rivals, key=lambda job: max(epoch["robust"] for epoch in runs[job].history()))
        _, held = hold_out(images, len(images) // 12, derive(best.seed, "hold-out"))
        right = evaluated(best, runs[best], held.take(slice(len(held) - given.examples, None)))
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        for job, run in runs.items():
            if not done(given.rows, job):
                row = row_of(job, run, len(images), right if job is best else {})
                with given.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        print(
            f"{best.name}: " + ", ".join(f"{name} {100 * mean(bits):.1f}" for name, bits in right.items()), flush=True
        )


def done(rows: Path, job: Job) -> bool:
    return any(Job(*(row[field] for field in Job._fields)).name == job.name for row in known(rows))


def trained(job: Job, images: int, out: Path, data_dir: Path | None) -> Run:
    recipe = recipe_for(job, images)
    print(f"{job.name}: {recipe.epochs} epochs of {images - int(recipe.validation):,} images", flush=True)
    return fit(recipe, out / job.name, data_dir=data_dir)


def row_of(job: Job, run: Run, images: int, right: dict[str, str]) -> Row:
    recipe, history = recipe_of(run), run.history()
    return {
        **job._asdict(),
        "epochs": len(history),
        "images": len(history) * (images - int(recipe.validation)),
        "passes": round(time_of(recipe), 2),
        "seconds": round(sum(epoch["seconds"] for epoch in history)),
        "robust": [epoch["robust"] for epoch in history],
        "failed": next((sign for sign in ("collapsed", "plateau") if history[-1].get(sign)), None),
        "defense": recipe.defense,
        "right": right,
    }


def evaluated(job: Job, run: Run, held: Images) -> dict[str, str]:
    """Of each measure a digit for each image: 1 if it is correctly classified."""
    recipe = recipe_of(run)
    model = make_model(recipe, held)
    load_weights(model, run.best)
    if recipe.smooth:
        rows = list(certified(model, held, run.folder / "certified.jsonl"))
        return {f"r {radius:g}": digits(row["radius"] >= radius for row in rows) for radius in RADII}
    found = attacked(model, held, recipe, run.folder, "")
    if "2k" in job.arm.split("+"):
        load_weights(model, run.last)
        found |= attacked(model, held, recipe, run.folder, "last ")
    return found


def attacked(model: nn.Module, held: Images, recipe: Recipe, folder: Path, which: str) -> dict[str, str]:
    """Clean accuracy and that under both attacks; a file of rows for each is kept in the folder."""
    strong = {"name": "cascade", "called": "strong", "attacks": suite_attacks("strong", recipe.threat)}
    found: dict[str, str] = {}
    for name, settings in (("PGD-40", {"name": "pgd", "steps": 40}), ("strong", strong)):
        file, attack = folder / f"{which}{name}.jsonl".replace(" ", "-"), make_attack(settings)
        rows: list[Any] = list(read_rows(file)) if file.exists() else []
        for part in evaluation_batches(len(held), BATCH):
            if part.start >= len(rows):
                rows += attack_batch(model, held, part, attack, recipe.make_threat()).rows
                write_rows(file, rows)
        found.setdefault(f"{which}clean", digits(row["clean"] == row["label"] for row in rows))
        found[f"{which}{name}"] = digits(row["robust"] for row in rows)
    return found


def certified(model: nn.Module, held: Images, file: Path) -> Iterator[Row]:
    """The radius proven for each image; -1 if the prediction is wrong or there is none."""
    rows = list(read_rows(file)) if file.exists() else []
    how = Smoothing(SIGMA, n=DRAWS, radii=RADII)
    x, y = held.batch(slice(None))
    trials = [Trial(k, x[k], how, int(y[k])) for k in range(len(rows), len(held))]
    for finished in run_cases(model, trials, SIGMA, 0, 1000):
        for trial in finished:
            proven = trial.certificate
            rows.append({"index": trial.index, "radius": proven.radius if proven.prediction == trial.label else -1.0})
        write_rows(file, rows)
    return iter(rows)


def digits(right: Iterable[bool]) -> str:
    return "".join(str(int(one)) for one in right)


def known(rows: Path) -> list[Row]:
    return list(read_rows(rows)) if rows.exists() else []


def status(given: argparse.Namespace) -> None:
    """How far each network is."""
    finished = {Job(*(row[field] for field in Job._fields)).name for row in known(given.rows)}
    for folder in sorted(path.parent for path in given.out.glob("*/recipe.json")):
        run = Run(folder)
        counts = [f"{file.stem} {len(list(read_rows(file)))}" for file in sorted(folder.glob("*.jsonl"))]
        trained = f"{len(run.history())}/{recipe_of(run).epochs} epochs"
        print(f"{folder.name:40} {'done' if folder.name in finished else ', '.join([trained, *counts])}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "status", "table"):
        command = commands.add_parser(name)
        command.add_argument("--rows", type=Path, default=ROWS)
        if name == "table":
            command.add_argument("--against", help="the arm to compare with; with --together ARM@MINUTES")
            command.add_argument("--together", action="store_true", help="one table for all budgets")
            continue
        command.add_argument("--out", type=Path, default=Path("runs/entropy"))
        if name == "train":
            command.add_argument("arms", nargs="+", help=f"arms, or groups: {', '.join(GROUPS)}")
            command.add_argument("--seeds", type=int, nargs="+", default=[0])
            command.add_argument("--lr", type=float, nargs="+", default=[0.05])
            command.add_argument("--minutes", type=float, default=20.0, help="of one core")
            command.add_argument("--examples", type=int, default=EXAMPLES)
            command.add_argument("--data", default="mnist")
            command.add_argument("--data-dir", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    try:
        if given.command == "table":
            print(table(known(given.rows), given.against, together=given.together))
        elif given.command == "status":
            status(given)
        else:
            prepare(1)
            train(given)
    except (UserError, Interrupted) as error:
        raise SystemExit(f"error: {error}") from None
