"""A smoothed network with real draws: what it counts, says and certifies, how it is attacked and trained for."""

import copy
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from atent.ascent import ascend, last, noise_for
from atent.attacks import Attack, Cascade, Pgd, SmoothPgd
from atent.data.dataset import load
from atent.data.images import hold_out
from atent.defenses import Atent, Gaussian, SmoothAdv, Trades, TradesSmooth
from atent.errors import UserError
from atent.evaluation.attack import attack_images
from atent.evaluation.target import open_target, smooth_target
from atent.losses import cross_entropy
from atent.models import Shape
from atent.randomness import derive
from atent.recipe import load_recipe, parse_recipe
from atent.smoothing.bounds import ABSTAIN
from atent.smoothing.noise import log_mean, noisy_copies, normal_noise
from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing
from atent.threat import Threat
from atent.training.fit import fit
from short_runs import QUIET, tiny
from toys import UNBOXED, generator, small_batch, small_network, stand_in, two_class_linear

SIGMA = 0.5
EARLY = Smoothing(SIGMA, n0=100, n=1250, radii=(0.25, 0.5))
EXACT = Smoothing(SIGMA, n0=100, n=1250)
modes = pytest.mark.parametrize("how", [EXACT, EARLY], ids=["exact-n", "early"])


def images_at(distances: Tensor) -> tuple[nn.Module, Tensor]:
    """A linear network, and images at these distances on the right side of its boundary."""
    weights = torch.randn(64, generator=generator(3))
    x = distances[:, None] * weights / weights.norm() + 0.5
    return two_class_linear(weights, bias=-0.5 * float(weights.sum())), x.view(-1, 1, 8, 8)


@modes
def test_radii_of_a_linear_network_are_below_the_distance_and_near_it(how: Smoothing) -> None:
    distances = torch.linspace(0.02, 1.2, 40)  # next to the boundary the first draws may choose the other class
    network, x = images_at(distances)
    found = Smoothed(network, SIGMA).certify(x, how)
    for certificate, distance in zip(found, distances.tolist(), strict=True):
        assert certificate.radius <= distance
        assert certificate.prediction in (1, ABSTAIN)
        assert certificate.draws == how.n0 + sum(certificate.counts.values())
        if how is EXACT and distance < 0.8 and certificate.top == 1:
            p, slope = stats.norm.cdf(distance / SIGMA), stats.norm.pdf(distance / SIGMA) / SIGMA
            assert distance - certificate.radius < 7 * (p * (1 - p) / how.n) ** 0.5 / slope
        if how is EARLY and distance > 0.75:
            assert certificate.radius == 0.5
            assert certificate.draws <= 800


@modes
def test_neither_the_batch_nor_the_neighbours_change_what_is_drawn(how: Smoothing) -> None:
    network, x = images_at(torch.linspace(0.02, 0.8, 12))
    smoothed = Smoothed(network, SIGMA)
    whole = smoothed.certify(x, how)
    assert smoothed.certify(x, how, batch=100) == whole
    assert smoothed.certify(x, how, batch=730) == whole
    assert smoothed.certify(x[:3], how) == whole[:3]
    assert smoothed.certify(x, how, seed=1) != whole


def test_batches_are_full_and_no_draw_is_made_in_vain() -> None:
    network, x = images_at(torch.linspace(0.02, 0.8, 12))
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    found = Smoothed(network, SIGMA).certify(x, Smoothing(SIGMA, n0=100, n=1000), batch=500)
    assert sum(sizes) == sum(certificate.draws for certificate in found) == 12 * 1100
    assert sizes.count(500) >= len(sizes) - 2  # the last image has to wait for its own first draws


def test_a_wrong_image_is_only_asked_for_a_prediction() -> None:
    network, x = images_at(torch.full((6,), 0.6))
    right, wrong = (Smoothed(network, SIGMA).certify(x, EARLY, y=torch.full((6,), k)) for k in (1, 0))
    assert all(certificate.radius == 0.0 for certificate in wrong)
    assert all(certificate.prediction == 1 for certificate in wrong)
    assert sum(certificate.draws for certificate in wrong) < sum(certificate.draws for certificate in right)


def test_predictions_abstain_where_the_noise_decides() -> None:
    network, x = images_at(torch.tensor([-1.0, 0.0, 1.0]))
    assert Smoothed(network, SIGMA).predict(x, n=200).tolist() == [0, ABSTAIN, 1]


def test_the_network_is_given_back_as_it_was() -> None:
    network = small_network().train()
    before = copy.deepcopy(network.state_dict())
    smoothed = Smoothed(network, SIGMA)
    smoothed.certify(small_batch()[0], EARLY)
    smoothed.predict(small_batch()[0], n=100)
    assert all(module.training for module in network.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_its_output_is_the_log_of_the_mean_probability() -> None:
    network, (x, _) = small_network().eval(), small_batch()
    smoothed = Smoothed(network, SIGMA, draws=4000).eval()
    with torch.no_grad():
        found = smoothed(x).exp()
        noise = normal_noise(x, 4000, SIGMA, generator())
        each = torch.stack([network(x + one).softmax(1) for one in noise])
    torch.testing.assert_close(found.sum(1), torch.ones(len(x)))
    assert (found - each.mean(0)).abs().max() < 5 * (2 / 4000) ** 0.5 * each.std(0).max()
    assert not torch.equal(smoothed(x), smoothed(x))  # drawn anew


def test_what_cannot_be_smoothed_is_refused() -> None:
    network = small_network()
    with pytest.raises(UserError, match="smoothed already"):
        Smoothed(Smoothed(network, SIGMA), SIGMA)
    with pytest.raises(UserError, match="sigma -1"):
        Smoothed(network, -1.0)
    with pytest.raises(UserError, match="draws 0"):
        Smoothed(network, SIGMA, draws=0)
    with pytest.raises(UserError, match=r"sigma 0.25 .* sigma 0.5"):
        Smoothed(network, SIGMA).certify(small_batch()[0], Smoothing(0.25))


def test_wrong_images_and_labels_are_refused() -> None:
    smoothed, (x, y) = Smoothed(small_network(), SIGMA), small_batch()
    for call in (smoothed.predict, lambda x: smoothed.certify(x, EXACT)):
        with pytest.raises(UserError, match=r"allowed: pixels in \[0, 1\]; divide them by 255"):
            call(255 * x)
    for wrong, words in ((y[:3], r"labels of shape \(3,\)"), (y + 7, "network of 3 classes"), (y - 9, "from -9")):
        with pytest.raises(UserError, match=words):
            smoothed.certify(x, EXACT, y=wrong)


@pytest.mark.parametrize("pull", [0.0, 1.7])
def test_noise_that_a_chain_accumulates_has_deviation_sigma(pull: float) -> None:
    """The law of the chain without a gradient: Gaussian around x, of the deviation asked for."""
    chain = ascend(
        lambda point: 0.0 * point.sum(1),
        torch.zeros(20_000, 1),
        Threat("l2", 1.0, UNBOXED),
        steps=6,
        step=0.3,
        noise=noise_for(SIGMA, pull, steps=6, step=0.3),
        pull=pull,
        start="center",
        project="never",
        generator=generator(),
    )
    assert float(last(chain).std()) == pytest.approx(SIGMA, rel=0.02)


def test_atent_with_sigma_trains_outside_the_box_at_noise_of_that_deviation() -> None:
    network = small_network(dropout=0).eval()
    x, y = torch.zeros(64, 1, 6, 6), torch.arange(64) % 3
    smooth = Atent(steps=4, reach=2, pull="auto", start="center", project="never", sigma=SIGMA)
    (*_, term) = smooth(network, x, y, Threat("l2", 0.5), generator())
    assert float(term.x_adv.min()) < -1
    assert float(term.x_adv.std()) == pytest.approx((SIGMA**2 + 0.5**2 / 36) ** 0.5, rel=0.05)
    with pytest.raises(ValueError, match="project 'every'"):
        Atent(sigma=SIGMA, project="every")


def test_gaussian_trains_at_noise_of_deviation_sigma() -> None:
    network = small_network(dropout=0).eval()
    x, y = torch.full((64, 1, 6, 6), 0.5), torch.arange(64) % 3
    (term,) = Gaussian(sigma=SIGMA)(network, x, y, Threat("l2", 1.0), generator())
    assert float((term.x_adv - x).std()) == pytest.approx(SIGMA, rel=0.05)
    torch.testing.assert_close(term.loss, cross_entropy(network(term.x_adv), y))


def test_trades_smooth_is_trades_around_noisy_images() -> None:
    network, (x, y) = small_network(dropout=0).eval(), small_batch()
    threat, source = Threat("l2", 0.5), generator()
    (term,) = TradesSmooth(sigma=SIGMA, beta=2, steps=3)(network, x, y, threat, generator())
    noisy = x + normal_noise(x, 1, SIGMA, source)[0]
    (plain,) = Trades(beta=2, steps=3)(network, noisy, y, threat.unboxed(), source)
    assert torch.equal(term.loss, plain.loss)
    assert float(term.x_adv.min()) < 0
    assert (threat.size(term.x_adv - noisy) < 0.5 + 1e-5).all()


def test_smooth_adv_is_its_equation() -> None:
    network, (x, y) = small_network(dropout=0).eval(), small_batch()
    threat = Threat("l2", 0.5)
    (term,) = SmoothAdv(sigma=0.2, draws=3, steps=2)(network, x, y, threat, generator())
    noise = normal_noise(x, 3, 0.2, generator())

    def smoothed_loss(point: Tensor) -> Tensor:
        mean = torch.stack([network(point + one).softmax(1) for one in noise]).mean(0)
        return -mean.gather(1, y[:, None])[:, 0].log()

    point = x
    for _ in range(2):
        point = point.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(smoothed_loss(point).sum(), point)
        point = threat.project(point.detach() + 0.5 * threat.steepest(gradient), x)
    torch.testing.assert_close(term.x_adv, point, atol=1e-5, rtol=0)
    mean = torch.stack([cross_entropy(network(point + one), y) for one in noise]).mean(0)
    torch.testing.assert_close(term.loss, mean)
    assert (smoothed_loss(point) > smoothed_loss(x)).all()


def test_smooth_pgd_raises_the_smoothed_loss_more_than_pgd_on_the_network() -> None:
    network, (x, _) = small_network(dropout=0).eval(), small_batch(64)
    smoothed = Smoothed(network, 0.3, draws=500).eval()
    with torch.no_grad():
        y = smoothed(x).argmax(1)
    plain = Pgd(steps=10)(network, x, y, Threat("l2", 0.4), generator())
    ours = SmoothPgd(steps=10)(Smoothed(network, 0.3).eval(), x, y, Threat("l2", 0.4), generator())
    with torch.no_grad():
        losses = [float(cross_entropy(smoothed(point), y).mean()) for point in (x, plain, ours)]
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("attack", [SmoothPgd(steps=2), Pgd(steps=2)], ids=["smooth-pgd", "pgd"])
def test_a_smoothed_network_is_attacked_and_evaluated_as_such(attack: Attack) -> None:
    network, images = small_network(dropout=0).eval(), stand_in(Shape((1, 6, 6), 3), 20)
    smoothed = Smoothed(network, 1.0, draws=64)
    rows = [row for batch in attack_images(smoothed, images, attack, Threat("l2", 0.0)) for row in batch]
    x, _ = images.batch(slice(None))
    with torch.no_grad():
        expected = Smoothed(network, 1.0, draws=64)(x).argmax(1).tolist()
        assert expected != network(x).argmax(1).tolist()
    assert [row["clean"] for row in rows] == expected


@pytest.mark.parametrize("attack", [SmoothPgd(steps=2), Cascade((Pgd(steps=2),))], ids=["smooth-pgd", "cascade"])
def test_every_image_of_a_randomized_network_is_attacked(attack: Attack) -> None:
    """Also where one prediction is wrong already: the one that decides whether it is robust may be right."""
    x, _ = small_batch(40)
    smoothed = Smoothed(small_network(dropout=0).eval(), 3.0, draws=1)
    y = torch.arange(40) % 3
    with torch.no_grad():
        assert (smoothed(x).argmax(1) != y).sum() > 10
    points = attack(smoothed, x, y, Threat("l2", 0.4), generator())
    assert ((points - x).flatten(1).abs().amax(1) > 0).all()


def test_smooth_pgd_wants_a_smoothed_network() -> None:
    model, (x, y) = small_network(), small_batch()
    with pytest.raises(UserError, match=r"not smoothed; .*--smooth SIGMA"):
        SmoothPgd()(model, x, y, Threat("l2", 0.4), generator())
    with pytest.raises(UserError, match="monitor smooth-pgd needs a smoothed network; set smooth"):
        tiny(monitor__name="smooth-pgd")


def test_the_smoothed_network_is_evaluated_on_held_out_images_and_by_default_attacked(tmp_path: Path) -> None:
    recipe = tiny(defense__name="standard", epochs=1, monitor_examples=100, smooth=2.0, monitor_draws=4)
    run = fit(recipe, tmp_path / "run", how=QUIET)
    target = open_target(run.folder, examples=5)
    _, held = hold_out(load("mnist-small", "train"), recipe.validation, derive(recipe.seed, "hold-out"))
    x, y = held.batch(slice(100))
    with torch.no_grad():
        plain, ours = (
            float((network(x).argmax(1) == y).float().mean())
            for network in (target.network, Smoothed(target.network, 2.0, draws=4).eval())
        )
    assert run.history()[0]["clean"] == pytest.approx(ours)
    assert plain != ours
    assert not isinstance(target.network, Smoothed)
    by_default, other = smooth_target(target).network, smooth_target(target, 0.5, draws=7).network
    assert isinstance(by_default, Smoothed)
    assert isinstance(other, Smoothed)
    assert (by_default.sigma, other.sigma, other.draws) == (2.0, 0.5, 7)
    assert smooth_target(target, 0).network is target.network


def test_a_recipe_with_the_noise_in_its_monitor_is_read() -> None:
    """Such recipes are in runs of versions before the key `smooth`."""
    new = load_recipe("mnist-smooth-gaussian")
    table = new.model_dump(exclude={"smooth", "monitor_draws"})
    table["monitor"] |= {"sigma": 0.5, "draws": 8}
    assert parse_recipe(table, "an old run") == new
    assert (new.smooth, new.monitor_draws) == (0.5, 8)


def test_noisy_copies_keep_the_order_of_draws() -> None:
    x = torch.rand(5, 1, 6, 6)
    noise = normal_noise(x, 3, 1.0, generator())
    assert torch.equal(noisy_copies(x, noise)[5:10], x + noise[1])
    logits = torch.randn(15, 4)
    torch.testing.assert_close(log_mean(logits, 3).exp(), logits.softmax(1).view(3, 5, 4).mean(0))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 6, 6), (7,)])
def test_the_noise_is_normal_around_the_image_and_never_repeated(shape: tuple[int, ...]) -> None:
    image = torch.rand(shape, generator=generator(4))
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return torch.stack([x.flatten(1)[:, 0], torch.zeros(len(x))], 1)

    Smoothed(Watching(), SIGMA).certify(image[None], Smoothing(SIGMA, n0=100, n=5050), batch=700)
    draws = torch.cat(seen)
    assert len(draws) == len(draws.flatten(1).unique(dim=0)) == 5150
    noise = (draws - image).flatten(1)
    assert float(noise.mean(0).abs().max()) < 5 * SIGMA / 5150**0.5
    assert float(noise.std(0).min()) == pytest.approx(SIGMA, rel=0.05)
    correlations = torch.corrcoef(noise.T) - torch.eye(noise.shape[1])
    assert float(correlations.abs().max()) < 5 / 5150**0.5
    assert stats.kstest(noise.flatten() / SIGMA, "norm").pvalue > 1e-4
