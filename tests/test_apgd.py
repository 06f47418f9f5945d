"""APGD: its curves against the authors' library, its checkpoints against the paper's table, its passes and its words."""

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from atent.attacks.apgd import LOSS, ascend_adaptively
from atent.randomness import normal_like, spawn, uniform_like
from atent.threat import Threat
from toys import THREATS, generator

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


def curved_network(classes: int = 5) -> nn.Sequential:
    """Ascent overshoots on it, so that steps are halved; it cannot be broken, so that curves reach their end."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, classes)).eval()
    with torch.no_grad():
        network[1].weight.mul_(12)
        network[3].bias[0] = 5
    return network


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
