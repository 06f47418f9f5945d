"""`atent certify`."""

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from atent.cli.options import Fields, TargetOptions
from atent.errors import UserError
from atent.limits import COPIES

if TYPE_CHECKING:
    from atent.smoothing.stopping import Smoothing


def certify(
    target: TargetOptions,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the noise, in pixels. Default: `smooth` of the recipe.", show_default=False
        ),
    ] = None,
    n: Annotated[
        int, typer.Option("--n", help="Draws of the noise that bound the class's probability, at most.")
    ] = 100_000,
    n0: Annotated[int, typer.Option("--n0", help="Draws before them that select the class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Probability that an image's certificate is wrong, at most.")] = 0.001,
    radii: Annotated[
        str | None,
        typer.Option(
            help="l2 radii of interest, e.g. 0,.25,.5. Default: every .25 that can be proven, at most a hundred."
        ),
    ] = None,
    threat: Annotated[
        list[str] | None,
        typer.Option(help="A radius of interest as a threat, such as linf:2/255 (by the norm bound). Repeatable."),
    ] = None,
    exact_n: Annotated[
        bool,
        typer.Option("--exact-n", help="All n draws for every image, and its largest radius: exactly Cohen et al."),
    ] = False,
    examples: Annotated[int | None, typer.Option(help="Certify N images. Default: all.")] = None,
    every: Annotated[int, typer.Option(help="Take every K-th test image.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    batch: Annotated[
        int, typer.Option(help="Noisy copies in a batch, rounded down to hundreds.", min=1, max=COPIES * 10)
    ] = 1000,
    attack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Also attack the smoothed network at each radius, e.g. smooth-pgd: accuracy from both sides.",
        ),
    ] = None,
    settings: Fields = None,
    draws: Annotated[
        int | None, typer.Option(help="With --attack: noisy copies per pass of the attack. Default: 64.", min=1)
    ] = None,
) -> None:
    """Certify a network smoothed with normal noise: accuracy that no attack within the radius can lower.

    One row per image. Run the same command again to resume after an interruption. Drawing stops for an image as soon
    as its outcome at every radius of interest is settled. For example:
    `atent certify runs/mnist-smooth-gaussian --sigma .5 --n 10000 --radii 0,.5,1,1.5 --every 33`;
    with `--attack smooth-pgd` it also gives an upper bound of the accuracy at each radius
    """
    from atent.evaluation.bracket import DRAWS, bracket_target, check_attack
    from atent.evaluation.certify import certify_target, check_deterministic, doubts_about, plan_certificates
    from atent.evaluation.suites import choose_attacks
    from atent.evaluation.target import every_image
    from atent.machine import say_device
    from atent.progress import say
    from atent.report.brackets import print_bracket
    from atent.report.terminal import print_certified
    from atent.smoothing.smoothed import Smoothed
    from atent.storage.brackets import read_bracket
    from atent.storage.certificates import read_certified
    from atent.threat import Threat

    asked, threats = _radii(radii), [Threat.parse(text) for text in threat or []]
    settle = partial(_settle, n0=n0, n=n, alpha=alpha, radii=[*asked, *(ball.eps for ball in threats)])
    if sigma is not None:
        settle(sigma)  # refuses bad settings before any work
    if attack is None and (settings or draws):
        given = f"--set {settings[0]}" if settings else f"--draws {draws}"
        raise UserError(f"{given} without --attack; allowed: with --attack NAME, such as --attack smooth-pgd")
    choice = choose_attacks(attack, settings or [], None) if attack else None
    opened, device = target.open()
    sigma = opened.smooth if sigma is None else sigma
    if not sigma:
        raise UserError(f"{target.target} was not trained to be smoothed, so --sigma must be given, such as .25")
    plain = settle(sigma)
    found = every_image(opened, every, examples)
    how, goals = plan_certificates(plain, asked, threats, found.images.shape.image, exact_n)
    check_deterministic(found.network, found.images, device)  # before anything is printed
    if choice and choice.one:
        check_attack(choice.one, Smoothed(found.network, sigma), goals[-1][0])
    say_device(device, target.amp)
    for doubt in doubts_about(sigma):
        say(f"caution: {doubt}")
    say(f"n {n:,} and alpha {alpha:g} allow radii up to {how.largest_radius:.4g} with sigma {sigma:g}")
    folder = target.out or found.folder
    path = certify_target(found, how, goals, folder, every=every, seed=seed, batch=batch, device=device)
    print_certified(read_certified(path))
    if choice and choice.one:
        how_many = {"draws": draws or DRAWS, "batch": batch}
        print_bracket(read_bracket(bracket_target(found, path, choice.one, choice.settings, **how_many, device=device)))


def _settle(sigma: float, n0: int, n: int, alpha: float, radii: list[float]) -> "Smoothing":
    """The settings of the certificates; those that cannot prove these radii are refused."""
    from atent.smoothing.stopping import Smoothing

    found = Smoothing(sigma, n0, n, alpha)
    found.check_radii(radii)
    return found


def _radii(text: str | None) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(math.isfinite(radius) and radius >= 0 for radius in found):
        raise UserError(f"--radii {text}; allowed: numbers >= 0 separated by commas, such as 0,.25,.5")
    return found
