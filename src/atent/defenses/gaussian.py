"""Training on noisy images, for a smoothed network."""

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Size, Tolerance, method
from atent.smoothing.noise import normal_noise
from atent.threat import Threat


@method
class Gaussian:
    """Noise augmentation: cross-entropy at x with normal noise, which may leave the pixel box.

        loss = CE(f(x + N(0, sigma^2 I)), y)

    Cohen et al. 2019, https://arxiv.org/abs/1902.02918, Section 3.3.
    """

    sigma: Size = 0.25
    label_smoothing: Tolerance = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        with checked(model, x, y, threat):
            noisy = x + normal_noise(x, 1, self.sigma, generator)[0]
            logits = model(noisy)
            yield Term(cross_entropy(logits, y, self.label_smoothing), logits, noisy)
