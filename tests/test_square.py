"""Square: its curves against the authors' library, its schedule and its rules against a transcription of the paper."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Square
from atent.attacks.square import BLOCK, Bumps, Signs, draw, hopeless, share, try_squares
from atent.errors import ThreatWarning, UserError
from atent.losses import margin
from atent.network import counted
from atent.randomness import spawn
from atent.threat import Threat
from test_apgd import Watched
from toys import THREATS, generator, linear

QUERIES = 20
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


def network_of_colors(side: int, lead: float = 0.0) -> nn.Sequential:
    """For 3 x side x side images; with a `lead` of its first class it cannot be broken, and curves reach their end."""
    torch.manual_seed(3)
    last = nn.Linear(4 * (side - 2) ** 2, 5)
    with torch.no_grad():
        last.bias[0] += lead
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), last).eval()


def batch_of_colors(model: nn.Module, side: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, side, side, generator=generator(1))
    with torch.no_grad():
        return x, model(x).argmax(1)


def numbers_of_each(x: Tensor, threat: Threat) -> Iterator[Iterator[float]]:
    """What our search draws for each image."""
    changes = (Signs if threat.norm == "linf" else Bumps)(x, threat)
    for one in spawn(generator(), len(x)):
        first, then = (draw([one], count, x)[0] for count in (changes.numbers_to_start, BLOCK * changes.numbers))
        yield iter([*first.tolist(), *then.tolist()])


def our_curve(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, queries: int = QUERIES) -> Tensor:
    watched = Watched(lambda point: margin(model(point), y))
    list(try_squares(watched, x, threat, queries=queries, p_init=0.8, generator=spawn(generator(), len(x))))
    return torch.stack(watched.curve, 1)


def the_librarys_curve(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, numbers: Iterator[float]
) -> list[float]:
    """The margins of one image in `pyautoattack`, fed with our numbers; a position may be the last, as ours may."""
    library = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed")

    class Fed(library.SquareAttack):  # type: ignore[misc, name-defined]
        def random_int(self, low: int, high: int) -> Tensor:
            return torch.tensor([int(low + (high - low + 1) * next(numbers))])

    def fed(shape: list[int]) -> Tensor:
        return torch.tensor([next(numbers) for _ in range(math.prod(shape))]).view(shape)

    monkeypatch.setattr(library.torch, "rand", fed)
    norm = "Linf" if threat.norm == "linf" else "L2"
    attack = Fed(model, norm=norm, n_queries=QUERIES, eps=threat.eps, device="cpu")
    attack.init_hyperparam(x)
    curve: list[float] = []
    margin_and_loss = attack.margin_and_loss

    def watched(*batch: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = margin_and_loss(*batch)
        curve.append(-float(found[0]))
        return found

    attack.margin_and_loss = watched
    attack.attack_single_run(x, y)
    return curve


@threats
@pytest.mark.parametrize("side", [6, 10])
def test_the_curve_is_the_librarys(monkeypatch: pytest.MonkeyPatch, threat: Threat, side: int) -> None:
    model = network_of_colors(side, lead=5.0)
    x, y = batch_of_colors(model, side)
    ours = our_curve(model, x, y, threat)
    assert ours.shape == (len(x), QUERIES + 1)
    for k, numbers in enumerate(numbers_of_each(x, threat)):
        with monkeypatch.context() as patch:
            theirs = the_librarys_curve(patch, model, x[k : k + 1], y[k : k + 1], threat, numbers)
        torch.testing.assert_close(ours[k], torch.tensor(theirs), rtol=0, atol=1e-5)


def the_papers_share(query: int) -> float:
    """Section 5.1: p is .8 at first and halved at these of 10,000 iterations."""
    p = 0.8
    for iteration in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000):
        if query > iteration:
            p /= 2
    return p


def test_the_schedule_is_the_papers() -> None:
    assert [share(query, 10_000, 0.8) for query in range(10_000)] == [the_papers_share(q) for q in range(10_000)]
    assert [share(query, 100, 0.8) for query in range(100)] == [the_papers_share(100 * q) for q in range(100)]


def the_papers_curve(model: nn.Module, x: Tensor, y: Tensor, eps: float, numbers: Iterator[float]) -> list[float]:
    """Algorithms 1 and 2 for one image, pixel by pixel: the margins of the points that are tried."""
    (channels, height, width), clean = x.shape[1:], x[0]
    point = clean.clone()
    for c in range(channels):
        for column in range(width):
            point[c, :, column] += eps if next(numbers) >= 0.5 else -eps
    point = point.clamp(0, 1)
    tried = [float(margin(model(point[None]), y))]
    highest = tried[0]
    for query in range(QUERIES):
        side = max(1, round(math.sqrt(the_papers_share(query * 10_000 // QUERIES) * height * width)))
        row, column = (int(next(numbers) * (size - side + 1)) for size in (height, width))  # uniform in {0 .. w - h}
        new = point.clone()
        for c in range(channels):
            new[c, row : row + side, column : column + side] += 2 * eps * (1 if next(numbers) >= 0.5 else -1)
        new = torch.minimum(torch.maximum(new, clean - eps), clean + eps).clamp(0, 1)
        tried.append(float(margin(model(new[None]), y)))
        if tried[-1] > highest:
            point, highest = new, tried[-1]
    return tried


def test_what_is_tried_and_kept_is_as_in_the_paper() -> None:
    model, threat = network_of_colors(7, lead=5.0), Threat("linf", 0.1)
    x, y = batch_of_colors(model, 7)
    ours = our_curve(model, x, y, threat)
    for k, numbers in enumerate(numbers_of_each(x, threat)):
        with torch.no_grad():
            paper = the_papers_curve(model, x[k : k + 1], y[k : k + 1], threat.eps, numbers)
        torch.testing.assert_close(ours[k], torch.tensor(paper), rtol=0, atol=1e-5)
    best = ours.cummax(1).values
    assert (best[:, -1] > best[:, 0]).all()


@threats
@pytest.mark.parametrize("size", [(14, 14), (3, 4), (9, 5)])
def test_points_fill_the_threat_whatever_the_images_size(threat: Threat, size: tuple[int, int]) -> None:
    """linf: every pixel at an end. l2: the whole norm is used, at the start and after each change."""
    x = torch.full((3, 2, *size), 0.5)
    points = try_squares(
        lambda point: point.flatten(1).sum(1), x, threat, queries=30, p_init=0.8, generator=spawn(generator(), 3)
    )
    for point in points:
        torch.testing.assert_close(threat.size(point - x), torch.full((3,), threat.eps))
        if threat.norm == "linf":
            torch.testing.assert_close((point - x).abs(), torch.full_like(x, threat.eps))


@threats
def test_forward_passes_only_and_in_the_images_layout(threat: Threat) -> None:
    model = network_of_colors(8)
    x, y = batch_of_colors(model, 8)
    layouts = set[bool]()
    hook = lambda _, inputs: layouts.add(inputs[0].is_contiguous(memory_format=torch.channels_last))  # noqa: E731
    model.register_forward_pre_hook(hook)
    with counted(model) as passes:
        Square(queries=200)(model, x.to(memory_format=torch.channels_last), y, threat.scaled(0.2), generator())
    assert layouts == {True}
    assert passes.backward == 0
    assert 0 < passes.forward <= 6 * 203


def test_a_radius_whose_square_overflows_gives_points_in_the_box() -> None:
    model = network_of_colors(8)
    x, y = batch_of_colors(model, 8)
    with pytest.warns(ThreatWarning):
        points = Square(queries=5)(model, x, y, Threat("l2", 1e200), generator())
    assert ((points >= 0) & (points <= 1)).all()  # NaN is neither


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"square: images of shape \(1, 4\); allowed: \(n, channels, height, width\)"):
        Square()(linear(torch.eye(4)), torch.eye(4)[:1], torch.tensor([0]), THREATS[0], generator())


def test_an_image_is_given_up_if_it_gains_too_little_for_the_queries_that_are_left() -> None:
    """At a quarter of the queries two doublings are left: with patience 3, six times the last gain must suffice."""
    history = torch.full((20, 4), -9.0)
    history[2], history[5] = torch.tensor([-9.0, -1.5, -0.2, -4.0]), torch.tensor([-3.5, -0.91, -0.2, -3.99])
    assert hopeless(history, 5, 3).tolist() == [False, False, True, True]
    assert hopeless(1000 * history, 5, 3).tolist() == [False, False, True, True]  # whatever the margin's unit
    assert hopeless(history, 5, 300).tolist() == [False, False, True, False]


def queries_used(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, attack: Square) -> tuple[Tensor, int]:
    with counted(model) as passes:
        x_adv = attack(model, x, y, threat, generator())
    return x_adv, passes.forward


def test_what_no_query_changes_is_given_up_after_a_tenth_of_them() -> None:
    model = linear(torch.zeros(2, 16), bias=torch.tensor([1.0, 0.0]))
    x, y = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.long)
    _, used = queries_used(model, x, y, THREATS[0], Square(queries=200, patience=1))
    _, whole = queries_used(model, x, y, THREATS[0], Square(queries=200))
    assert whole - used == 3 * (200 - 20)


@pytest.mark.parametrize("threat", [Threat("linf", 0.06), Threat("l2", 0.4)], ids=str)
def test_patience_saves_queries_and_changes_no_point_that_breaks(threat: Threat) -> None:
    model = network_of_colors(8)
    x, y = batch_of_colors(model, 8)
    (patient, used), (plain, whole) = (
        queries_used(model, x, y, threat, Square(queries=400, patience=patience)) for patience in (2, 0)
    )
    with torch.no_grad():
        broken, without = (model(found).argmax(1) != y for found in (patient, plain))
    assert used < whole
    assert 0 < broken.sum() < 6
    assert (broken <= without).all()
    assert torch.equal(patient[broken], plain[broken])
