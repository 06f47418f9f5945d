"""APGD: its curves against the authors' library, its checkpoints against the paper, its passes and its words."""

import math
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Apgd, PerImage, Square, apgd, square
from atent.attacks.apgd import LOSS, ascend_adaptively, checkpoints
from atent.errors import UserError
from atent.losses import targeted_dlr
from atent.network import counted
from atent.randomness import normal_like, spawn, uniform_like
from atent.threat import Threat
from test_attacks import assert_falls_within_its_distance
from toys import THREATS, generator, small_batch, small_network

LossName = Literal["cross-entropy", "dlr", "dlr-targeted"]
STEPS = 20
threats = pytest.mark.parametrize("threat", THREATS, ids=str)
losses = pytest.mark.parametrize("loss", LOSS)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Numbers in double precision, so that rounding does not hide a difference of methods."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def curved_network() -> nn.Sequential:
    """Ascent overshoots on it, so that steps are halved; it cannot be broken, so that curves reach their end."""
    torch.manual_seed(3)
    first, last = nn.Linear(36, 24), nn.Linear(24, 5)
    with torch.no_grad():
        first.weight.mul_(12)
        last.bias[0] = 5
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last).eval()


def right_batch(model: nn.Module, count: int = 12) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 1, 6, 6, generator=generator(1))
    with torch.no_grad():
        return x, model(x).argmax(1)


class Watched:
    """A function of the point that writes down its values."""

    def __init__(self, objective: Callable[..., Tensor]) -> None:
        self.objective, self.curve = objective, list[Tensor]()

    def __call__(self, *arguments: Tensor) -> Tensor:
        value = self.objective(*arguments)
        self.curve.append(value.detach().clone())
        return value


def the_librarys_curve(
    monkeypatch: pytest.MonkeyPatch,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    loss: LossName,
    aims: Tensor,
) -> list[Tensor]:
    """The losses at the start and after each step of `pyautoattack`, whose two random functions are fed with ours."""
    library = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack is not installed")
    monkeypatch.setattr(library.torch, "rand", lambda _: (uniform_like(x, spawn(generator(), len(x)), -1, 1) + 1) / 2)
    monkeypatch.setattr(library.torch, "randn", lambda _: normal_like(x, spawn(generator(), len(x))))
    norm = "Linf" if threat.norm == "linf" else "L2"
    kind = library.APGDAttack_targeted if loss == "dlr-targeted" else library.APGDAttack
    attack = kind(model, n_iter=STEPS, norm=norm, eps=threat.eps, device="cpu")
    attack.loss = {"cross-entropy": "ce"}.get(loss, loss)
    attack.y_target = aims
    attack.init_hyperparam(x)
    name = {"cross-entropy": "CrossEntropyLoss", "dlr": "dlr_loss", "dlr-targeted": "dlr_loss_targeted"}[loss]
    if loss == "cross-entropy":
        watched = Watched(nn.CrossEntropyLoss(reduction="none"))
        monkeypatch.setattr(library.nn, name, lambda **_: watched)
    else:
        watched = Watched(getattr(attack, name))
        setattr(attack, name, watched)
    attack.attack_single_run(x, y)
    return watched.curve


@losses
@threats
@pytest.mark.usefixtures("doubles")
def test_the_curve_is_the_librarys(monkeypatch: pytest.MonkeyPatch, threat: Threat, loss: LossName) -> None:
    model = curved_network()
    x, y = right_batch(model)
    aims = model(x).argsort(1, descending=True)[:, 1]
    also = (aims,) if loss == "dlr-targeted" else ()
    watched = Watched(lambda point, *also: LOSS[loss](model(point), y, *also))
    list(ascend_adaptively(watched, x, threat, steps=STEPS, generator=spawn(generator(), len(x)), aims=also))
    with monkeypatch.context() as patch:
        theirs = torch.stack(the_librarys_curve(patch, model, x, y, threat, loss, aims))
    ours = torch.stack(watched.curve)
    assert ours.shape == (STEPS + 1, len(x))
    assert (ours[1:] < ours[:-1]).float().mean() > 0.1  # paths overshoot
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


def test_checkpoints_are_the_papers() -> None:
    """Section 3.1: w_j = ceil(p_j N), p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06)."""
    percent = [0, 22]
    while percent[-1] <= 100:
        percent.append(percent[-1] + max(percent[-1] - percent[-2] - 3, 6))
    for steps in (100, 200, 1000):
        assert list(checkpoints(steps)) == [math.ceil(p * steps / 100) for p in percent[1:-1]]
    assert list(checkpoints(1)) == [1]


@losses
@threats
def test_the_worst_case_of_a_linear_network_is_found(loss: LossName, threat: Threat) -> None:
    assert_falls_within_its_distance(Apgd(loss=loss, steps=25), threat, classes=4)


def test_targeted_dlr_is_equation_7() -> None:
    logits, y, aims = torch.tensor([[1.0, 8.0, 2.0, 5.0, 4.0]]), torch.tensor([3]), torch.tensor([0])
    torch.testing.assert_close(targeted_dlr(logits, y, aims), torch.tensor([-(5.0 - 1.0) / (8.0 - (4.0 + 2.0) / 2)]))


PER_IMAGE: list[PerImage] = [
    Apgd(steps=10, restarts=2),
    Apgd(steps=10, loss="dlr-targeted"),
    Square(queries=30),
]
per_image = pytest.mark.parametrize("attack", PER_IMAGE, ids=lambda attack: attack.title)


@per_image
@threats
def test_an_image_gets_the_same_point_alone_and_with_others(
    monkeypatch: pytest.MonkeyPatch, attack: PerImage, threat: Threat
) -> None:
    """And the batch costs as many passes as its images alone: broken images cost no further pass."""
    monkeypatch.setattr(square, "BLOCK", 10)
    model, (x, _) = small_network(classes=4, dropout=0).eval(), small_batch(8)
    y, threat = model(x).argmax(1), threat.scaled(0.5)
    with counted(model) as together:
        x_adv = attack.each(model, x, y, threat, spawn(generator(), len(x)))
    broken = model(x_adv).argmax(1) != y
    assert 0 < broken.sum() < len(x)
    with counted(model) as alone:
        for k, one in enumerate(spawn(generator(), len(x))):
            point = attack.each(model, x[k : k + 1], y[k : k + 1], threat, [one])
            torch.testing.assert_close(point, x_adv[k : k + 1], rtol=0, atol=1e-6)
    assert together == alone


@per_image
def test_a_generator_for_each_image(attack: PerImage) -> None:
    model, (x, _) = small_network(classes=4, dropout=0).eval(), small_batch(8)
    assert isinstance(attack, PerImage)
    with pytest.raises(UserError, match="7 generators for 8 images"):
        attack.each(model, x, model(x).argmax(1), THREATS[0], spawn(generator(), 7))


@pytest.mark.parametrize(("loss", "needed"), [("dlr", 3), ("dlr-targeted", 4)])
def test_too_few_classes_are_refused(loss: LossName, needed: int) -> None:
    model, (x, y) = small_network(classes=needed - 1), small_batch(classes=needed - 1)
    with pytest.raises(UserError, match=f"'{loss}': the network has {needed - 1} classes; allowed: {needed} or more"):
        Apgd(loss=loss)(model, x, y, THREATS[0], generator())


def test_there_are_no_more_targets_than_wrong_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(apgd, "detail", told.append)
    model = curved_network()
    x, y = right_batch(model, 3)
    with counted(model) as passes:
        Apgd(loss="dlr-targeted", steps=2, restarts=2)(model, x, y, THREATS[0], generator())
    assert told[0] == "APGD-T, target 1/4, restart 1/2, step 0/2, 3 images left"
    assert told[-1] == "APGD-T, target 4/4, restart 2/2, step 2/2, 3 images left"
    assert passes.backward == 4 * 2 * 3 * 3


def test_titles() -> None:
    assert Apgd().title == "APGD-CE"
    assert Apgd(loss="dlr-targeted", targets=3, restarts=2).title == "APGD-T (restarts 2, targets 3)"
    assert Square(queries=1000).title == "Square-1000"
