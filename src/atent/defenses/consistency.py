"""Training on noisy images with equal predictions for all of them, for a smoothed network."""

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.inputs import checked
from atent.methods import Copies, Scale, Size, Tolerance, method
from atent.smoothing.consistency import consistent
from atent.smoothing.noise import noisy_copies, normal_noise
from atent.threat import Threat


@method
class Consistency:
    """Consistency regularization: cross-entropy at noisy copies of x, a KL to their mean prediction, and its entropy.

        loss = (1/m) sum_i [ CE(f(x + d_i), y) + beta KL(q || p_i) ] + eta H(q)
        p_i = softmax(f(x + d_i)),   q = (1/m) sum_i p_i,   d_i ~ N(0, sigma^2 I)

    Jeong & Shin 2020, https://arxiv.org/abs/2006.04062; m is `draws`, beta their lambda. Differs from the authors' code
    in: the logarithms are exact where probabilities vanish (theirs clamps q at 1e-20 in H).
    """

    sigma: Size = 0.25
    draws: Copies = 2
    beta: Scale = 10.0
    eta: Scale = 0.5
    label_smoothing: Tolerance = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat):
            copies = noisy_copies(x, normal_noise(x, self.draws, self.sigma, generator))
            loss, log_q = consistent(model(copies), y, self.draws, self.beta, self.eta, self.label_smoothing)
            yield Term(loss, log_q, copies[: len(x)])
