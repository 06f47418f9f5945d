import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.ascent import ascend
from atent.defenses import DEFENSES, Atent, Defense, Mart, Mma, PgdAt, Search, Term
from atent.defenses.cost import passes_per_image
from atent.losses import boosted_cross_entropy, cross_entropy
from atent.methods import Scale, completed, method, written_out
from atent.threat import Threat
from toys import THREATS, generator, small_batch, small_network

defenses = pytest.mark.parametrize("build", DEFENSES.values(), ids=DEFENSES.keys())
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


SEARCHING = {name: build for name, build in DEFENSES.items() if isinstance(build, type) and issubclass(build, Search)}
searching = pytest.mark.parametrize("build", SEARCHING.values(), ids=SEARCHING.keys())


def gradients(defense: Defense, model: nn.Module, threat: Threat) -> list[Tensor]:
    """The weight gradient of one batch, its terms back-propagated as they come."""
    model.zero_grad()
    torch.manual_seed(0)
    for term in defense(model, *small_batch(), threat, generator()):
        term.loss.mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@threats
@defenses
def test_terms_are_finite_and_reach_every_parameter(build: Callable[..., Defense], threat: Threat) -> None:
    model, (x, y) = small_network().train(), small_batch()
    for term in build()(model, x, y, threat, generator()):
        assert term.loss.shape == (len(x),)
        assert term.loss.isfinite().all()
        assert term.logits.shape == (len(x), 3)
        assert term.x_adv.shape == x.shape
        term.loss.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(module.training for module in model.modules())


@threats
@defenses
def test_same_generator_same_bits(build: Callable[..., Defense], threat: Threat) -> None:
    one, two = (gradients(build(), small_network().train(), threat) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@threats
@searching
def test_every_search_has_a_temperature(build: Callable[..., Search], threat: Threat) -> None:
    """Hotter is further from the point of the same search without noise; the ball still holds."""
    x, y = small_batch()
    cold, warm, hot = (
        build(temperature=temperature).find(small_network(dropout=0).eval(), x, y, threat, generator())
        for temperature in (0.0, 1e-3, 0.3)
    )
    assert 0 < (warm - cold).norm() < (hot - cold).norm()
    if build().project == "every" and not getattr(build(), "sigma", 0.0):
        assert (threat.size(hot.reshape_as(x) - x) <= threat.eps + 1e-6).all()


@pytest.mark.parametrize(
    "defense", [*(build() for build in SEARCHING.values()), Atent(steps=4, share=0.5)], ids=lambda d: type(d).__name__
)
@threats
def test_a_search_and_its_loss_are_two_parts(defense: Search, threat: Threat) -> None:
    """`loss_at` at the points of `find` has the gradient of the whole, at each call."""
    x, y = small_batch()
    model = small_network(dropout=0).eval()
    whole = gradients(defense, model, threat)
    found = defense.find(model, x, y, threat, generator())
    for _ in range(2):
        model.zero_grad()
        torch.stack([term.loss for term in defense.loss_at(model, x, y, found)]).sum(0).mean().backward()
        for parameter, expected in zip(model.parameters(), whole, strict=True):
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fields", [{"noise": 0.001}, {"sigma": 0.1}])
def test_atents_older_noise_is_refused_with_a_temperature(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"temperature 0.5 and (noise 0.001|sigma 0.1) both"):
        Atent(project="never", temperature=0.5, **fields)  # type: ignore[arg-type]


@method
class Quieter(Atent):
    """Another default of the noise."""

    _: KW_ONLY
    temperature: Scale = 0.0
    noise: Scale = 1e-3


@pytest.mark.parametrize("build", [Atent, Quieter])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.25}, (0.25, 0.0)),
        ({"temperature": 0.0}, (0.0, 0.0)),
        ({"noise": 0.1}, (0.0, 0.1)),
        ({"noise": 0.0}, (0.0, 0.0)),
        ({"sigma": 0.1, "project": "never", "noise": 1e-3}, (0.0, 1e-3)),
    ],
)
def test_one_field_sets_atents_noise_whatever_the_default(
    build: type[Atent], fields: dict[str, Any], expected: tuple[float, float]
) -> None:
    """So an older recipe, which names `noise`, has the same chain with another default, and its run can be resumed."""
    defense = build(**fields)
    assert (defense.temperature, defense.noise) == expected
    older = {"name": "atent", **fields}
    ours = written_out(older, defense)
    assert completed(older, ours, defense) == ours


def test_the_default_noise_of_atent_is_one_of_two_kinds() -> None:
    assert (Atent().temperature, Atent().noise) == (0.5, 0.0)
    assert (Quieter().temperature, Quieter().noise) == (0.0, 1e-3)
    assert Atent(sigma=0.1, project="never").temperature == 0


EQUAL = (10, 2.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (5, 4.6, 0.125)),
        ({"steps": 3, "temperature": 0.25}, (3, 4.6, 0.125)),
        ({"noise": 1e-3}, EQUAL),
        ({"step": 0.01}, EQUAL),
        ({"sigma": 0.1, "project": "never"}, EQUAL),
        ({"pull": "auto", "project": "never"}, EQUAL),
        ({"pull": 1.0, "pull_rate": 0.1, "project": "never"}, EQUAL),
        ({"steps": 40, "reach": 3.0}, (40, 3.0, 1.0)),
        ({"reach": 3.0, "decay": 0.5}, (5, 3.0, 0.5)),
    ],
)
def test_fields_of_a_chain_with_equal_steps_bring_its_other_defaults(
    fields: dict[str, Any], expected: tuple[int, float, float]
) -> None:
    """So a recipe from before `decay` that names its noise has the same chain."""
    defense = Atent(**fields)
    assert (defense.steps, defense.reach, defense.decay) == expected
    quiet = "noise" in fields or "sigma" in fields
    assert (defense.temperature, defense.noise) == (
        0.0 if quiet else fields.get("temperature", 0.5),
        fields.get("noise", 0.0),
    )


@defenses
def test_flat_examples_in_half_precision_are_as_good_as_images(build: Callable[..., Defense]) -> None:
    x, y = torch.rand(6, 12, generator=generator()).bfloat16(), torch.arange(6) % 3
    model = nn.Linear(12, 3).bfloat16()
    for term in build()(model, x, y, THREATS[1], generator()):
        assert term.x_adv.shape == x.shape
        assert term.x_adv.dtype == torch.bfloat16
        term.loss.mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()


def hinged(logits: Tensor, y: Tensor) -> Tensor:
    """MMA with margins that are all beyond a d_max of 0: wrong examples count in full, right ones a third."""
    return cross_entropy(logits, y) * torch.where(logits.argmax(1) == y, 1 / 3, 1.0)


NOISY = ("gaussian", "consistency", "smooth-adv", "trades-smooth")  # they train at noisy images, whatever the radius


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("build", [build for name, build in DEFENSES.items() if name not in NOISY])
def test_radius_zero_trains_at_x(build: Callable[..., Defense], norm: str) -> None:
    model, (x, y) = small_network(dropout=0).eval(), small_batch()
    terms = list(build()(model, x, y, Threat.parse(f"{norm}:0"), generator()))
    assert all(torch.equal(term.x_adv, x) for term in terms)
    at_x = {Mart: boosted_cross_entropy, Mma: hinged}.get(build, cross_entropy)  # type: ignore[call-overload]
    share = sum(term.loss for term in terms) / at_x(model(x), y)
    torch.testing.assert_close(share, torch.ones(len(x)))


BATCHNORM_MOVES = {
    "standard": 1,
    "fast": 1,
    "pgd-at": 1,
    "trades": 2,
    "mart": 2,
    "mma": 2,
    "atent": 1,
    "gaussian": 1,
    "consistency": 1,
    "smooth-adv": 1,
    "trades-smooth": 2,
    "n-fgsm": 1,
}


@pytest.mark.parametrize("name", DEFENSES)
def test_batchnorm_moves_once_a_full_pass(name: str) -> None:
    model = small_network().train()
    gradients(DEFENSES[name](), model, THREATS[0])
    assert model[1].num_batches_tracked == BATCHNORM_MOVES[name]


def test_batchnorm_moves_in_the_search_too_where_that_trains() -> None:
    model = small_network().train()
    gradients(PgdAt(steps=4, mode="train"), model, THREATS[0])
    assert model[1].num_batches_tracked == 5


@pytest.mark.parametrize(("mode", "moves"), [("eval", 3), ("train", 4 + 1)])
def test_atents_batchnorm_moves_as_its_page_says(mode: str, moves: int) -> None:
    """eval: once for each of the three samples that carry gradients. train: at x'_0 .. x'_4, none of them twice."""
    model = small_network().train()
    gradients(Atent(steps=4, share=0.9, mode=mode), model, THREATS[0])  # type: ignore[arg-type]
    assert model[1].num_batches_tracked == moves


@pytest.mark.parametrize("mode", ["eval", "train"])
@threats
def test_atent_without_entropy_is_pgd_training_bit_for_bit(threat: Threat, mode: str) -> None:
    plain = Atent(noise=0, reach=2.5, mode=mode)  # type: ignore[arg-type]
    pgd = PgdAt(reach=2.5, mode=mode)  # type: ignore[arg-type]
    ours, theirs = (gradients(defense, small_network().train(), threat) for defense in (plain, pgd))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def straightforward(self: Atent, model: nn.Module, threat: Threat) -> list[Tensor]:
    """Algorithms 1 and 2 of the paper as printed: the moving average of K losses, K graphs alive."""
    x, y = small_batch()
    points = ascend(
        lambda point: cross_entropy(model(point), y),
        x,
        threat,
        steps=self.steps,
        reach=self.reach,
        decay=self.decay,
        noise=self.noise,
        temperature=self.temperature,
        pull=self.pull,
        direction=self.direction,
        project=self.project,
        generator=generator(),
    )
    average = torch.zeros(len(x))
    for point in list(points):
        average = (1 - self.share) * average + self.share * cross_entropy(model(point), y)
    return list(torch.autograd.grad(average.mean(), list(model.parameters())))


@pytest.mark.parametrize("direction", ["steepest", "raw"])
@pytest.mark.parametrize("pull", [0.0, "auto"])
@pytest.mark.parametrize("project", ["last", "every"])
@threats
def test_exact_mode_is_the_papers_moving_average(
    threat: Threat, project: str, pull: float | str, direction: str
) -> None:
    model = small_network(dropout=0).eval()
    exact = Atent(steps=6, share=0.5, pull=pull, direction=direction, tolerance=0, project=project)  # type: ignore[arg-type]
    for ours, theirs in zip(gradients(exact, model, threat), straightforward(exact, model, threat), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@threats
def test_dropped_shares_change_the_gradient_by_no_more_than_their_sum(threat: Threat) -> None:
    model = small_network(dropout=0).eval()
    kept = Atent(steps=8, share=0.9)
    dropped = sum(share for share in kept.shares() if share <= kept.tolerance)
    assert 0 < dropped < 1.1e-3
    short, exact = (gradients(Atent(steps=8, share=0.9, tolerance=tolerance), model, threat) for tolerance in (1e-3, 0))
    error = torch.cat([(a - b).flatten() for a, b in zip(short, exact, strict=True)]).norm()
    # Any single sample's gradient is about as long as the average's; ten times is a generous bound.
    assert error <= 10 * dropped * torch.cat([b.flatten() for b in exact]).norm()
    assert error > 0


def test_shares_are_the_moving_average_unrolled() -> None:
    average = [0.0] * 5
    for k in range(5):
        average = [0.1 * share for share in average]
        average[k] += 0.9
    assert Atent(steps=5, share=0.9).shares() == pytest.approx(average)
    assert Atent(steps=5).shares() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_only_one_graph_is_alive_whatever_the_chains_length(mode: str) -> None:
    chains = [Atent(steps=steps, share=0.9, tolerance=0, mode=mode) for steps in (5, 40)]  # type: ignore[arg-type]
    peaks = [peak_saved_elements(chain) for chain in chains]
    assert peaks[0] == peaks[1] > 0


def peak_saved_elements(defense: Defense) -> int:
    """The most elements that autograd held at once during a training step."""
    alive = peak = 0

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal alive, peak
            self.tensor = tensor
            alive += tensor.numel()
            peak = max(peak, alive)
            weakref.finalize(self, release, tensor.numel())

    def release(count: int) -> None:
        nonlocal alive
        alive -= count

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        gradients(defense, small_network().train(), THREATS[0])
    return peak


def test_terms_may_be_collected_before_they_are_used() -> None:
    """A user's loop may sum the terms first: more memory, the same gradient."""
    model = small_network(dropout=0).eval()
    x, y = small_batch()
    defense = Atent(steps=4, share=0.5)
    together = torch.stack([term.loss for term in defense(model, x, y, THREATS[0], generator())]).sum(0).mean()
    summed = torch.autograd.grad(together, list(model.parameters()))
    for ours, theirs in zip(gradients(defense, model, THREATS[0]), summed, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", DEFENSES)
def test_passes_are_those_of_the_docs_page(name: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / f"{name}.md").read_text(encoding="utf-8")
    said = re.search(r"\*\*Cost\*\*: (\d+) forward, (\d+) backward pass", page)
    assert said, "the page does not tell the cost"
    for threat in THREATS:
        passes = passes_per_image(DEFENSES[name](), threat)
        assert (passes.forward, passes.backward) == (int(said[1]), int(said[2]))
        # BatchNorm's statistics move in full passes; that of some defenses holds several noisy copies of an image.
        assert passes.to_weights == BATCHNORM_MOVES[name] * getattr(DEFENSES[name](), "draws", 1)


def test_a_users_own_defense_needs_no_edit_of_ours() -> None:
    class Noisy:
        def __call__(
            self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator
        ) -> Iterator[Term]:
            noisy = threat.sample(x, generator)
            logits = model(noisy)
            yield Term(cross_entropy(logits, y), logits, noisy)

    mine: Defense = Noisy()
    assert len(gradients(mine, small_network().train(), THREATS[0])) == 6


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (PgdAt, {"pull": "auto", "project": "never"}),
        (PgdAt, {"pull": 1.0, "pull_rate": 0.1, "project": "never"}),
        (Atent, {"sigma": 0.5, "project": "never"}),
    ],
)
def test_steps_that_shrink_are_refused_where_equal_ones_are_assumed(
    build: type[PgdAt] | type[Atent], fields: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"decay 0\.5.*; allowed: .*1, equal steps"):
        build(decay=0.5, **fields)  # type: ignore[arg-type]
