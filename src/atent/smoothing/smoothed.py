"""The smoothed network: it predicts, certifies, and can be attacked like any other network."""

import torch
from torch import Tensor, nn

from atent.errors import UserError
from atent.inputs import check_images, checked
from atent.limits import COPIES, check_range
from atent.network import answers, borrowed
from atent.randomness import derive
from atent.smoothing.bounds import Certificate
from atent.smoothing.counting import Trial, Vote, run_cases
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.smoothing.stopping import Smoothing
from atent.threat import Threat

PIXELS = Threat("l2", 0.0)  # its box is that of images


class Smoothed(nn.Module):
    """g(x): the predictions of `network` for x + N(0, sigma^2 I), averaged over `draws` new draws of the noise.

    A call returns log E softmax(network(x + noise)). So cross-entropy on it is the smoothed loss of Salman et al. 2019
    (https://arxiv.org/abs/1906.04584), and any attack can be used on it. `predict` and `certify` count predicted
    classes, as Cohen et al. do, and give guarantees; they run the network in eval mode.
    """

    def __init__(self, network: nn.Module, sigma: float, draws: int = 16, seed: int = 0) -> None:
        super().__init__()
        if isinstance(network, Smoothed):
            raise UserError("the network is smoothed already; allowed: the network inside, which is not randomized")
        Smoothing(sigma)  # checks it
        check_range("draws", draws, 1, COPIES)
        self.network, self.sigma, self.draws, self.seed = network, sigma, draws, seed
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities; every call draws new noise, the same in every process."""
        self.calls += 1
        generator = derive(self.seed, "smoothed", self.calls, device=x.device)
        noise = normal_noise(x, self.draws, self.sigma, generator)
        return log_mean(self.network(noisy_copies(x, noise)), self.draws)

    def rewind(self) -> None:
        """Restart the noise with that of the first call, so that the output does not depend on earlier calls."""
        self.calls = 0

    def predict(self, x: Tensor, *, n: int = 1000, alpha: float = 0.001, seed: int = 0, batch: int = 1000) -> Tensor:
        """The class that g predicts for each image, or ABSTAIN; wrong with probability at most alpha per image."""
        check_images(x, PIXELS)
        how = Smoothing(self.sigma, n=n, alpha=alpha)
        votes = [Vote(k, image, how) for k, image in enumerate(x)]
        done = [case for some in run_cases(self.network, votes, self.sigma, seed, batch) for case in some]
        return torch.tensor([case.prediction for case in done], device=x.device)

    def certify(
        self, x: Tensor, how: Smoothing, *, y: Tensor | None = None, seed: int = 0, batch: int = 1000
    ) -> list[Certificate]:
        """The class and the certified l2 radius of each image. With labels `y` misclassified images get fewer draws."""
        if how.sigma != self.sigma:
            raise UserError(f"sigma {how.sigma:g} for a network smoothed with sigma {self.sigma:g}; allowed: the same")
        check_images(x, PIXELS)
        if y is not None:
            with checked(self.network, x, y, PIXELS), borrowed(self.network):
                answers(self.network, x[:1])  # the shape of its logits gives the number of classes
        labels = [None] * len(x) if y is None else y.tolist()
        trials = [Trial(k, image, how, label) for k, (image, label) in enumerate(zip(x, labels, strict=True))]
        done = [case for some in run_cases(self.network, trials, self.sigma, seed, batch) for case in some]
        return [case.certificate for case in done]
