"""`atent attack`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from atent.cli.options import DataDir, DataName, Device, ModelName, Threads, Trust
from atent.errors import UserError


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
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Check with points made on another network, named like TARGET, too. Turns --checks on.",
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
    trust: Trust = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Attack a network on the test images: one row per image, accuracies with 95 % intervals.

    Rows are written as they come; killed and run again, the same command goes on. For example:
    `atent attack runs/demo --set steps=40 --set restarts=10`,
    `atent attack runs/demo --suite strong --examples 500`
    """
    from atent.attacks import make_attack
    from atent.evaluation.attack import attack_target
    from atent.evaluation.checks import check_network, check_range
    from atent.evaluation.suites import suite_attacks
    from atent.evaluation.target import open_network, open_target
    from atent.machine import pick_device, prepare
    from atent.recipe import parse_setting
    from atent.report.tables import finished, result_lines
    from atent.report.terminal import print_classes, print_costs, print_results, print_signs
    from atent.threat import Threat

    fields = dict(map(parse_setting, settings or []))
    if "name" in fields:
        raise UserError("--set name=...: the attack's name is given by --attack")
    if suite and (attack or fields):
        raise UserError(f"--suite {suite} with --attack or --set: a suite's attacks are fixed; give one or the other")
    if transfer and checks is False:
        raise UserError(f"--transfer {transfer} with --no-checks: it is one of the checks")
    asked = [Threat.parse(text) for text in threat or []]
    one = {"name": attack or "pgd", **fields}
    for method in [one] if suite is None else suite_attacks(suite, asked[0] if asked else Threat("linf", 0.0)):
        make_attack(method, f"attack {method['name']}")  # mistakes are told before any work
    prepare(threads)
    where = pick_device(device)
    network = open_target(
        target, model=model, data=data, data_dir=data_dir, resize=resize, examples=examples, device=where, trust=trust
    )
    if not asked and network.threat is None:
        raise UserError(f"{target} does not say its threat, so --threat must be given, such as linf:0.3")
    folder = out or network.folder
    other = open_network(transfer, network.images.shape, network.model, where, trust=trust) if transfer else None
    for name, judged in ((target, network.network), (transfer, other)):
        for warning in check_range(judged, network.images, where) if judged else []:
            print(f"warning: {name}: {warning}", file=sys.stderr)
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
    found = finished(folder)
    print_results(result_lines(found))
    if classes:
        print_classes(found)
    print_costs(files, save_images)
    if checks or transfer or (checks is None and suite == "strong"):
        for ball in {ball.norm: ball for ball in sorted(against, key=lambda ball: ball.eps)}.values():
            signs = check_network(network.network, network.images, ball, other=other, seed=seed, device=where)
            print_signs(ball, signs)
