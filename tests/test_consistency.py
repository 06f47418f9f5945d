import math
from typing import Any

import pytest
import torch

from atent.defenses import Consistency, Gaussian, SmoothAdv
from atent.smoothing.noise import normal_noise
from atent.threat import Threat
from toys import generator, small_batch, small_network


@pytest.mark.parametrize(("beta", "eta"), [(7.0, 0.3), (7.0, 0.0), (0.0, 0.3)])
def test_consistency_is_its_equation(beta: float, eta: float) -> None:
    """Jeong & Shin 2020: mean CE + lambda mean KL(mean p || p_i) + eta H(mean p), image by image in probabilities."""
    network, (x, y) = small_network(dropout=0).double().eval(), small_batch()
    x = x.double()
    (term,) = Consistency(sigma=0.4, draws=3, beta=beta, eta=eta)(network, x, y, Threat("l2", 1.0), generator())
    noise = normal_noise(x, 3, 0.4, generator())
    expected = []
    with torch.no_grad():
        for k, label in enumerate(y.tolist()):
            p = [network(x[k : k + 1] + draw[k : k + 1]).softmax(1)[0].tolist() for draw in noise]
            q = [sum(column) / 3 for column in zip(*p, strict=True)]
            fit = sum(-math.log(one[label]) for one in p) / 3
            apart = sum(b * math.log(b / a) for one in p for a, b in zip(one, q, strict=True)) / 3
            expected.append(fit + beta * apart - eta * sum(b * math.log(b) for b in q))
    torch.testing.assert_close(term.loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_one_draw_of_consistency_without_entropy_is_gaussian_training() -> None:
    network, (x, y) = small_network(dropout=0).eval(), small_batch()
    batch = (network, x, y, Threat("l2", 1.0))
    (ours,), (plain,) = Consistency(draws=1, eta=0)(*batch, generator()), Gaussian()(*batch, generator())
    torch.testing.assert_close(ours.loss, plain.loss)


def test_smooth_adv_with_a_beta_is_consistency_at_its_points() -> None:
    """At a radius of 0 they are x itself, elsewhere the points that SmoothAdv finds without the regularization."""
    network, (x, y) = small_network(dropout=0).eval(), small_batch()
    parts: dict[str, Any] = {"sigma": 0.3, "draws": 2, "beta": 7.0, "eta": 0.3}
    (ours,) = SmoothAdv(**parts)(network, x, y, Threat("l2", 0.0), generator())
    (consistency,) = Consistency(**parts)(network, x, y, Threat("l2", 0.0), generator())
    assert torch.equal(ours.loss, consistency.loss)

    (plain,) = SmoothAdv(sigma=0.3, draws=2)(network, x, y, Threat("l2", 1.0), generator())
    (ours,) = SmoothAdv(**parts)(network, x, y, Threat("l2", 1.0), generator())
    (there,) = Consistency(**parts)(network, plain.x_adv, y, Threat("l2", 1.0), generator())
    assert torch.equal(ours.x_adv, plain.x_adv)
    torch.testing.assert_close(ours.loss, there.loss)
    assert (ours.loss > plain.loss).all()
