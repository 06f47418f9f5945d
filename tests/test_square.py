"""Square: its curves against the authors' library, its schedule and its rules against a transcription of the paper."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.attacks.square import BLOCK, Bumps, Signs, draw, try_squares
from atent.losses import margin
from atent.randomness import spawn
from atent.threat import Threat
from test_apgd import Watched
from toys import THREATS, generator

QUERIES = 20
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


def network_of_colors(side: int = 8) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * (side - 2) ** 2, 5)).eval()


def the_librarys_curve(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, numbers: Iterator[float]
) -> list[float]:
    """The margins of one image in `pyautoattack`, fed with our numbers; a position may be the last, as ours may."""
    library = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed")

    class Fed(library.SquareAttack):  # type: ignore[misc, name-defined]
        def random_int(self, low: int = 0, high: int = 1, shape: Any = (1,)) -> Tensor:
            return torch.tensor([int(low + (high - low + 1) * next(numbers))])

    def fed(shape: list[int]) -> Tensor:
        return torch.tensor([next(numbers) for _ in range(math.prod(shape))]).view(shape)

    monkeypatch.setattr(library.torch, "rand", fed)
    norm = "Linf" if threat.norm == "linf" else "L2"
    attack = Fed(model, norm=norm, n_queries=QUERIES, eps=threat.eps, device="cpu")
    attack.init_hyperparam(x)
    curve: list[float] = []
    margin_and_loss = attack.margin_and_loss

    def watched(*batch: Tensor) -> Any:
        found = margin_and_loss(*batch)
        curve.append(-float(found[0]))
        return found

    attack.margin_and_loss = watched
    attack.attack_single_run(x, y)
    return curve


@threats
@pytest.mark.parametrize("side", [6, 10])
def test_the_curve_is_the_librarys(monkeypatch: pytest.MonkeyPatch, threat: Threat, side: int) -> None:
    model, x = network_of_colors(side), torch.rand(6, 3, side, side, generator=generator(1))
    with torch.no_grad():
        model[3].bias[0] = 5.0  # nothing is broken, so that curves reach their end
        y = model(x).argmax(1)
    watched = Watched(lambda point: margin(model(point), y))
    search = {"queries": QUERIES, "p_init": 0.8, "generator": spawn(generator(), len(x))}
    list(try_squares(watched, x, threat, **search))
    ours = torch.stack(watched.curve, 1)
    assert ours.shape == (len(x), QUERIES + 1)
    changes = (Signs if threat.norm == "linf" else Bumps)(x, threat)
    for k, one in enumerate(spawn(generator(), len(x))):
        numbers = [*draw([one], changes.numbers_to_start, x)[0], *draw([one], BLOCK * changes.numbers, x)[0]]
        with monkeypatch.context() as patch:
            theirs = the_librarys_curve(patch, model, x[k : k + 1], y[k : k + 1], threat, iter(map(float, numbers)))
        torch.testing.assert_close(ours[k], torch.tensor(theirs), rtol=0, atol=1e-5)
