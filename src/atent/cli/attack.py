"""`atent attack`."""

import sys
from typing import Annotated

import typer

from atent.cli import options as o
from atent.errors import UserError


def attack(
    target: o.TargetOptions,
    attack: o.AttackName = None,
    settings: o.Fields = None,
    suite: o.Suite = None,
    threat: o.Threats = None,
    smooth: o.Smooth = None,
    draws: o.Draws = 16,
    examples: Annotated[int | None, typer.Option(help="Attack the first N test images. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attack's random starts.")] = 0,
    batch: Annotated[int, typer.Option(help="Images attacked at once.", min=1)] = 250,
    checks: o.Checks = None,
    transfer: o.Transfer = None,
    classes: o.Classes = False,
    save_images: o.SaveImages = False,
) -> None:
    """Attack a network on the test images: one row per image, accuracies with 95 % intervals.

    Rows are saved batch by batch. Run the same command again to resume after an interruption. For example:
    `atent attack runs/demo --set steps=40 --set restarts=10`, `atent attack runs/demo --suite strong --examples 500`
    """
    from atent.evaluation.attack import attack_target
    from atent.evaluation.checks import check_range, check_target
    from atent.evaluation.suites import choose_attacks
    from atent.evaluation.target import open_network, smooth_target
    from atent.report.terminal import print_attacks, print_signs
    from atent.threat import Threat

    choice, threats = choose_attacks(attack, settings or [], suite), [Threat.parse(text) for text in threat or []]
    if transfer and checks is False:
        raise UserError(f"--transfer {transfer} with --no-checks: it is one of the checks")
    found, device = target.open(examples)
    found = smooth_target(found, smooth, draws)
    plan = choice.plan(found, threats)
    other = open_network(transfer, found.images.shape, found.model, device, trust=target.trust) if transfer else None
    for name, network in ((target.target, found.network), (transfer, other)):
        for warning in check_range(network, found.images, device) if network else []:
            print(f"warning: {name}: {warning}", file=sys.stderr)
    folder = target.out or found.folder
    files = [
        attack_target(found, one, folder, seed=seed, batch=batch, device=device, save_images=save_images)
        for one in plan
    ]
    print_attacks(folder, files, classes=classes, images=save_images)
    if checks or transfer or (checks is None and suite == "strong"):
        for ball, signs in check_target(found, [one.threat for one in plan], other=other, seed=seed, device=device):
            print_signs(ball, signs)
