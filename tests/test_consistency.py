import math

import torch

from atent.defenses import Consistency, Gaussian
from atent.smoothing.noise import normal_noise
from atent.threat import Threat
from toys import generator, small_batch, small_network


def test_consistency_is_its_equation() -> None:
    """Jeong & Shin 2020: mean CE + lambda mean KL(mean p || p_i) + eta H(mean p), image by image in probabilities."""
    network, (x, y) = small_network(dropout=0).double().eval(), small_batch()
    x = x.double()
    (term,) = Consistency(sigma=0.4, draws=3, beta=7, eta=0.3)(network, x, y, Threat("l2", 1.0), generator())
    noise = normal_noise(x, 3, 0.4, generator())
    expected = []
    with torch.no_grad():
        for k, label in enumerate(y.tolist()):
            p = [network(x[k : k + 1] + draw[k : k + 1]).softmax(1)[0].tolist() for draw in noise]
            q = [sum(column) / 3 for column in zip(*p, strict=True)]
            fit = sum(-math.log(one[label]) for one in p) / 3
            apart = sum(b * math.log(b / a) for one in p for a, b in zip(one, q, strict=True)) / 3
            expected.append(fit + 7 * apart - 0.3 * sum(b * math.log(b) for b in q))
    torch.testing.assert_close(term.loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_one_draw_of_consistency_without_entropy_is_gaussian_training() -> None:
    network, (x, y) = small_network(dropout=0).eval(), small_batch()
    batch = (network, x, y, Threat("l2", 1.0))
    (ours,), (plain,) = Consistency(draws=1, eta=0)(*batch, generator()), Gaussian()(*batch, generator())
    torch.testing.assert_close(ours.loss, plain.loss)
