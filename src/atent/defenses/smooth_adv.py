"""Adversarial training of a smoothed network."""

from dataclasses import KW_ONLY

import torch
from torch import Generator, Tensor, nn

from atent.defenses.protocols import Search, Term, Terms
from atent.losses import cross_entropy
from atent.methods import Copies, Count, Scale, Size, Start, method
from atent.smoothing.consistency import consistent
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.threat import Threat


@method
class SmoothAdv(Search):
    """SmoothAdv: cross-entropy at noisy copies of the point where PGD on the smoothed loss ends.

        x' = PGD on -log( (1/m) sum_i softmax(f(x' + d_i))_y ),   loss = (1/m) sum_i CE(f(x' + d_i), y)

    with the same m = `draws` draws d_i of N(0, sigma^2 I) throughout. x' stays in the threat and in the pixel box, its
    noisy copies do not. Salman et al. 2019, https://arxiv.org/abs/1906.04584. With `beta` or `eta` the regularization
    of `consistency` (Jeong & Shin 2020, https://arxiv.org/abs/2006.04062) is added at these copies.
    """

    sigma: Size = 0.25
    draws: Copies = 2
    _: KW_ONLY
    beta: Scale = 0.0
    eta: Scale = 0.0
    steps: Count = 4
    reach: Size = 2.0
    start: Start = "center"

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:
        noise = normal_noise(x, self.draws, self.sigma, generator)

        def smoothed_loss(logits: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(log_mean(logits, self.draws), y)

        def noisy(point: Tensor) -> Tensor:
            return noisy_copies(point, noise)

        x_adv = self.climb(model, x, y, threat, generator, loss=smoothed_loss, seen=noisy)
        return torch.stack([x_adv, *noise])

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:  # noqa: ARG002
        x_adv, noise = found[0], found[1:]
        logits = model(noisy_copies(x_adv, noise))
        yield Term(*consistent(logits, y, self.draws, self.beta, self.eta, self.label_smoothing), x_adv)
