"""`atent train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from atent.cli.options import Amp, DataDir, DataName, Device, ModelName, Settings, Threads


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (atent list recipes) or the path of a .toml file.")],
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/RECIPE.")] = None,
    data: DataName = None,
    data_dir: DataDir = None,
    model: ModelName = None,
    device: Device = "auto",
    threads: Threads = None,
    amp: Amp = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the network first (torch.compile); worthwhile on a GPU.")
    ] = False,
    settings: Settings = None,
    weights: Annotated[
        Path | None, typer.Option(help="Start from these weights: a run folder, zoo:NAME, .safetensors or .pt file.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Layer that does not get the --weights but starts from scratch, e.g. classifier.fc3. Repeatable.",
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="LAYER", help="Layer that is not trained. Repeatable.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Train for N minutes: the schedule ends when the time does, whatever the recipe's epochs.",
            show_default=False,
        ),
    ] = None,
    more_epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Continue a finished training for N epochs.", min=1, show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(help="Threads that read images from files.")] = 2,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--in-memory",
            help="Read image files batch by batch, or all at the start. Default: depends on the RAM.",
            show_default=False,
        ),
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Save a checkpoint every N minutes.")] = 1.0,
    checkpoint_batches: Annotated[int | None, typer.Option(help="Save a checkpoint also every N batches.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Draw curves into OUT/tensorboard.")] = False,
) -> None:
    """Train a network with a recipe. Run the same command again to resume.

    Writes recipe, environment, a log line per epoch and two checkpoints: best.safetensors has the weights of the
    epoch with the highest robust accuracy on held-out images, last.safetensors the state to resume from.
    """
    from atent.attacks.protocols import title_of
    from atent.machine import pick_device, prepare
    from atent.methods import parse_setting
    from atent.models import is_users
    from atent.recipe import load_recipe
    from atent.report.terminal import tell
    from atent.storage.run import Run
    from atent.training.extend import extend, settle
    from atent.training.fit import fit
    from atent.training.options import TrainingOptions

    named = {"data": data, "model": model, "weights": weights and str(weights), "reset": reset, "freeze": freeze}
    named |= {"amp": amp}
    changes = dict(map(parse_setting, settings or [])) | {key: value for key, value in named.items() if value}
    if minutes is not None:
        changes["minutes"] = minutes
    chosen = load_recipe(recipe, changes)
    folder = out or Path("runs") / Path(recipe).stem
    prepare(threads)
    where, every = pick_device(device), (checkpoint_minutes, checkpoint_batches)
    how = TrainingOptions(where, workers, stream, *every, tensorboard, compile=compiled)
    if more_epochs:
        chosen = extend(Run(folder), chosen, more_epochs)
    run = fit(chosen, folder, data_dir=data_dir, how=how)
    history = run.history()
    best = next(row for row in reversed(history) if row["best"])
    monitor = chosen.methods.monitor
    _print_training(folder, best, len(history), chosen.threat, title_of(monitor))
    own = f" --model {chosen.model}" if is_users(chosen.model) else ""
    tell(f"Weights: {folder}/best.safetensors")
    tell(f"Next: atent attack {folder}{own}")
    settle(run)


def _print_training(folder: Path, best: dict[str, Any], epochs: int, threat: str, monitor: str) -> None:
    from atent.report.terminal import print_table
    from atent.storage.rows import rate_of

    if "clean" in best:
        count = best["examples"]
        rows = [
            ["clean", str(rate_of(best["clean"], count))],
            [f"{monitor} {threat}", str(rate_of(best["robust"], count))],
        ]
        print_table(
            f"{folder}: epoch {best['epoch']} of {epochs}, {count} held-out images", ["", "accuracy % [95 %]"], rows
        )
