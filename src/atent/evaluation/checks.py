"""Signs that an attack failed, not that a network is robust. Each is a sentence with its figures.

After Carlini et al. 2019, https://arxiv.org/abs/1902.06705, and Athalye et al. 2018, https://arxiv.org/abs/1802.00420.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atent.ascent import ascend, input_gradient
from atent.attacks import Attack, Pgd, Square
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.target import Target
from atent.inputs import checked
from atent.leak import leaky_gradients
from atent.losses import Loss, cross_entropy, margin
from atent.network import borrowed, predict, repeat
from atent.parallel.team import current_team
from atent.progress import say
from atent.randomness import derive
from atent.smoothing.smoothed import Smoothed
from atent.storage.checks import keep_checks
from atent.threat import Threat

EXAMPLES = 100
QUERIES = 300
NOTABLE = 0.02  # of the images: two of a hundred may be chance
LEAK = 0.001  # the derivative of ReLU where it is off: docs/search.md


@dataclass(frozen=True)
class Sample:
    """Images that the network classifies correctly, with the network, and optionally another one to make points on."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    seed: int
    other: nn.Module | None = None

    def left(self, attack: Attack, threat: Threat | None = None) -> Tensor:
        """Which images are still classified correctly under an attack."""
        generator = derive(self.seed, "checks", device=self.x.device)
        points = attack(self.model, self.x, self.y, threat or self.threat, generator)
        return predict(self.model, points) == self.y

    def left_of(self, among: Tensor, attack: Attack) -> Tensor:
        """As `left`, of those `among` them; the others are not attacked."""
        left = among.clone()
        if among.any():
            left[among] = replace(self, x=self.x[among], y=self.y[among]).left(attack)
        return left


def check_network(
    model: nn.Module,
    images: Images,
    threat: Threat | str,
    *,
    other: nn.Module | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[str]:
    """Test the network on its first images; returns a sentence for each suspicious finding.

    It costs about 80 gradients and 300 forward passes per image. With an `other` network, points made on it are tried
    too: 40 gradients of it and 40 more forward passes.
    """
    threat = Threat.parse(threat)
    x, y = images.batch(slice(EXAMPLES), device)
    with borrowed(model):
        with checked(model, x, y, threat):
            right = predict(model, x) == y
        if not right.any():
            return ["none of the first images is classified right, so there is nothing to check"]
        sample = Sample(model, x[right], y[right], threat, seed, other)
        # A smoothed network gives log-probabilities of random noise by definition.
        odd = [] if isinstance(model, Smoothed) else [*check_outputs(sample), *check_randomness(sample)]
        return [*odd, *check_gradients(sample), *check_attacks(sample)]


def wants_checks(asked: bool | None, transfer: str | None, suite: str | None) -> bool:
    """Whether to run the checks: as asked for, else with `strong` and with a network to transfer from."""
    if transfer and asked is False:
        raise UserError(f"--transfer {transfer} with --no-checks: it is one of the checks")
    return bool(transfer) or (suite == "strong" if asked is None else asked)


def check_target(
    target: Target, threats: Iterable[Threat], *, other: nn.Module | None = None, seed: int = 0, device: torch.device
) -> Iterator[tuple[Threat, list[str]]]:
    """The suspicious findings at the largest radius of each norm."""
    largest = {threat.norm: threat for threat in sorted(threats, key=lambda threat: threat.eps)}
    for threat in largest.values():
        yield threat, check_network(target.network, target.images, threat, other=other, seed=seed, device=device)


def check_and_keep(
    target: Target, threats: Iterable[Threat], folder: Path, *, transfer: str | None = None, seed: int = 0, **how: Any
) -> dict[Threat, list[str]]:
    """As `check_target`, with the findings written next to the rows in `folder`; in a team, by the first process."""
    found = dict(check_target(target, threats, seed=seed, **how))
    for threat, warnings in found.items() if current_team().leads else ():
        keep_checks(folder, target.header({"threat": str(threat)}, seed), warnings, transfer)
    return found


def check_range(model: nn.Module, images: Images, device: torch.device | str = "cpu") -> list[str]:
    """Whether the network is hardly better than chance on clean images."""
    x, y = images.batch(slice(EXAMPLES), device)
    with borrowed(model):
        accuracy = float((predict(model, x) == y).float().mean())
    chance = 1 / images.shape.classes
    if len(y) < 50 or accuracy > chance + 0.1 * (1 - chance):
        return []
    return [
        f"only {100 * accuracy:.0f} % of the first {len(y)} clean images are classified right (chance: "
        f"{100 * chance:.0f} %): the network may want another pixel range than [0,1], a standardization, or other data"
    ]


def warn_of_range(networks: Mapping[str, nn.Module | None], images: Images, device: torch.device | str = "cpu") -> None:
    """Print a warning for each network, by its name, that is hardly better than chance on clean images."""
    for name, network in networks.items():
        for warning in check_range(network, images, device) if network else []:
            say(f"warning: {name}: {warning}")


@torch.no_grad()
def check_outputs(sample: Sample) -> Iterator[str]:
    """The outputs must be logits: losses of probabilities vanish where the network is confident."""
    outputs = sample.model(sample.x)
    if outputs.min() >= 0 and outputs.max() <= 1 + 1e-5 and (outputs.sum(1) - 1).abs().max() < 1e-4:
        yield (
            "the outputs are probabilities (every row sums to 1): softmax is applied twice in a loss, which hides its "
            "gradient; return the logits"
        )
    elif outputs.logsumexp(1).abs().max() < 1e-4:
        yield (
            "the outputs are log-probabilities (every row's logsumexp is 0): their small differences are lost to "
            "rounding where the network is sure; return the logits"
        )


def check_randomness(sample: Sample) -> Iterator[str]:
    """A randomized network must be attacked in the mean over its randomness."""
    found = repeat(sample.model, sample.x)
    if found.random:
        yield (
            f"two passes over the same {len(sample.x)} images differ by {100 * found.change:.2g} % of the largest "
            f"logit and in {found.flips} predictions: the network is random, so a point that failed once may succeed, "
            "and single gradients mislead; average gradients over passes (autoattack with version=rand)"
        )


def check_gradients(sample: Sample) -> Iterator[str]:
    """Gradient attacks need gradients that are finite and not zero."""
    gradient = input_gradient(lambda x: cross_entropy(sample.model(x), sample.y), sample.x).flatten(1)
    lost = float(((gradient == 0).all(1) | ~gradient.isfinite().all(1)).float().mean())
    if lost > NOTABLE:
        yield (
            f"the loss has no input gradient (all zero, or NaN) for {100 * lost:.0f} % of {len(gradient)} images: "
            "gradient attacks stand still there, from logits too large for the softmax or a step that cannot be "
            "differentiated; attack the margin or DLR loss, or a smooth stand-in of that step"
        )


def check_attacks(sample: Sample) -> Iterator[str]:
    """More steps, a larger radius and access to gradients must not make an attack weaker."""
    count = len(sample.x)
    once = sample.left(Pgd(steps=1, reach=1.0, start="center"))
    many, by_margin = sample.left(Pgd(steps=20)), sample.left(Pgd(steps=20, loss="margin"))
    if float(many.float().mean() - once.float().mean()) > NOTABLE:
        yield (
            f"one step breaks more than twenty: {int(once.sum())} of {count} images withstand FGSM, "
            f"{int(many.sum())} PGD-20: the gradient leads astray after the first step (gradient masking)"
        )
    everything = _everything(sample)
    far = float(sample.left(Pgd(steps=40, loss="margin"), everything).float().mean())
    most = float(sample.y.bincount().max() / count)
    if far > most + NOTABLE:
        yield (
            f"{100 * far:.0f} % of {count} images withstand PGD-40 at {everything}, a radius at which every "
            f"image can be made the same grey, so at most {100 * most:.0f} % can: the attack fails there, and may "
            f"at {sample.threat} too"
        )
    white = many & by_margin
    blind = sample.left_of(white, Square(queries=QUERIES))
    if float((white & ~blind).sum()) > NOTABLE * count:
        yield (
            f"a random search of {QUERIES} queries without gradients breaks {int((white & ~blind).sum())} of the "
            f"{int(white.sum())} images that withstood PGD-20: gradients are masked, and figures of gradient attacks "
            f"flatter{_off(sample)}"
        )
    if sample.other is None:
        return
    carried = transfer(sample, sample.other, white)
    if float((white & ~carried).sum()) > NOTABLE * count:
        yield (
            f"points that PGD-20 made on the other network break {int((white & ~carried).sum())} of the "
            f"{int(white.sum())} images that withstood PGD-20 on this one: its gradients are masked, and figures of "
            "gradient attacks flatter"
        )


def _off(sample: Sample) -> str:
    """Of how many pixels units that are off hide the gradient, as a part of a sentence; empty if of few."""
    corner = sample.threat.sample(sample.x, derive(sample.seed, "corner", device=sample.x.device), "corner")
    zero, with_leak = (_zeros(sample, corner, leak) for leak in (0.0, LEAK))
    if zero - with_leak < 0.1:
        return ""
    return (
        f"; {100 * zero:.0f} % of the pixels have a gradient of exactly 0, {100 * (zero - with_leak):.0f} % because a "
        f"ReLU is off: attack with --attack apgd --set leak={LEAK:g}, too"
    )


def _zeros(sample: Sample, point: Tensor, leak: float) -> float:
    """The share of pixels with a gradient of exactly 0."""
    with leaky_gradients(leak):
        gradient = input_gradient(lambda x: cross_entropy(sample.model(x), sample.y), point)
    return float((gradient == 0).float().mean())


def _everything(sample: Sample) -> Threat:
    """The smallest threat of the same norm that contains the grey image around every image."""
    radius = 0.5 if sample.threat.norm == "linf" else 0.5 * math.sqrt(sample.x[0].numel())
    return sample.threat.with_radius(radius)


def transfer(sample: Sample, other: nn.Module, among: Tensor) -> Tensor:
    """Which images withstand every point of PGD-20's paths on another network, on cross-entropy and on the margin.

    Only the images in the mask `among` are tried. A path does not end where the other network is wrong: such points
    transfer worst.
    """
    left = among.clone()
    generator = derive(sample.seed, "transfer", device=sample.x.device)
    with borrowed(other):
        for loss in (cross_entropy, margin):
            k = left.nonzero()[:, 0]
            if len(k) == 0:
                break
            objective = partial(_loss_on, other, loss, sample.y[k])
            for point in ascend(objective, sample.x[k], sample.threat, steps=20, generator=generator):
                left[k] &= predict(sample.model, point) == sample.y[k]
    return left


def _loss_on(model: nn.Module, loss: Loss, y: Tensor, x: Tensor) -> Tensor:
    return loss(model(x), y)
