"""Adversarial training of a smoothed network."""

from functools import partial

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Count, Mode, Size, Start, method
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.threat import Threat


@method
class SmoothAdv:
    """SmoothAdv: cross-entropy at noisy copies of the point where PGD on the smoothed loss ends.

        x' = PGD on -log( (1/m) sum_i softmax(f(x' + d_i))_y ),   loss = (1/m) sum_i CE(f(x' + d_i), y)

    with the same m = `draws` draws d_i of N(0, sigma^2 I) throughout. x' stays in the threat and in the pixel box, its
    noisy copies do not. Salman et al. 2019, https://arxiv.org/abs/1906.04584.
    """

    sigma: Size = 0.25
    draws: Count = 2
    steps: Count = 4
    step: Size | None = None
    reach: Size = 2.0
    start: Start = "center"
    mode: Mode = "eval"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat) as threat:
            noise = normal_noise(x, self.draws, self.sigma, generator)

            def smoothed_loss(logits: Tensor, y: Tensor) -> Tensor:
                return cross_entropy(log_mean(logits, self.draws), y)

            def noisy(point: Tensor) -> Tensor:
                return noisy_copies(point, noise)

            search = partial(worst_point, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
            x_adv = search(model, x, y, threat, generator, loss=smoothed_loss, mode=self.mode, seen=noisy)
            logits = model(noisy_copies(x_adv, noise))
            losses = cross_entropy(logits, y.repeat(self.draws)).unflatten(0, (self.draws, -1))
            yield Term(losses.mean(0), log_mean(logits, self.draws), x_adv)
