"""`atent attack`."""

from functools import partial

from atent.cli import options as o


def attack(
    target: o.TargetOptions,
    attack: o.AttackName = None,
    settings: o.Fields = None,
    suite: o.Suite = None,
    threat: o.Threats = None,
    smooth: o.Smooth = None,
    draws: o.Draws = 16,
    within: o.Within = None,
    claim: o.Claim = None,
    confidence: o.Confidence = None,
    examples: o.Examples = None,
    seed: o.Seed = 0,
    batch: o.Batch = None,
    checks: o.Checks = None,
    transfer: o.Transfer = None,
    classes: o.Classes = False,
    save_images: o.SaveImages = False,
) -> None:
    """Attack a network on the test images: one row per image, accuracies with 95 % intervals.

    Rows are saved batch by batch. Run the same command again to resume after an interruption. For example:
    `atent attack runs/demo --set steps=40 --set restarts=10`, `atent attack runs/demo --suite strong --within 1`
    """
    from atent.evaluation.attack import attack_target
    from atent.evaluation.checks import check_and_keep, wants_checks, warn_of_range
    from atent.evaluation.estimate import estimate_target, make_goal, plan_phases
    from atent.evaluation.suites import choose_attacks
    from atent.evaluation.target import open_network, smooth_target
    from atent.machine import say_device
    from atent.report.terminal import print_attacks, print_estimates, print_verdicts
    from atent.threat import Threat

    choice, threats = choose_attacks(attack, settings or [], suite), [Threat.parse(text) for text in threat or []]
    goal = make_goal(within, claim, confidence, classes=classes, save_images=save_images, examples=examples)
    checks = wants_checks(checks, transfer, suite)
    opened, device = target.open(examples)
    found, folder = smooth_target(opened, smooth, draws), target.out or opened.folder
    other = open_network(transfer, found.images.shape, found.model, device, trust=target.trust) if transfer else None
    phases = plan_phases(choice, found, threats, device) if goal else []
    plan = [] if goal else choice.plan(found, threats)
    warn_of_range({target.target: found.network, str(transfer): other}, found.images, device)
    say_device(device, target.amp)
    if goal:
        estimate = partial(estimate_target, confidence=confidence, seed=seed, batch=batch, device=device)
        made = print_estimates([estimate(found, one, goal, folder) for one in phases], goal)
    else:
        run = partial(attack_target, seed=seed, batch=batch, device=device, save_images=save_images)
        made = print_attacks(folder, [run(found, one, folder) for one in plan], classes=classes, images=save_images)
    balls = [one.threat for one in plan or phases] if checks else []
    signs = check_and_keep(found, balls, folder, transfer=transfer, other=other, seed=seed, device=device)
    print_verdicts(made, suite, signs)
