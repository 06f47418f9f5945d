"""The pull that follows how far points went: its equation, where it ends, and what it refuses."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.ascent import auto_pull, step_size
from atent.defenses import Atent, PgdAt, Trades, TradesSmooth
from atent.storage.files import load_tensors, take_part
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.step import Step, adapt, new_memory, with_memory
from short_runs import QUIET, tiny
from toys import UNBOXED, generator, two_class_linear

EPS = 0.5


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("first", [0.2, 5.0])
def test_it_ends_at_the_pull_that_reaches_the_radius(norm: str, first: float) -> None:
    """Of a linear network the direction is constant, so that pull is known: the one of `pull="auto"`."""
    threat = Threat(norm, EPS, UNBOXED)  # type: ignore[arg-type]
    model = two_class_linear(torch.tensor([1.0, -1.0, 1.0]))
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    defense = PgdAt(steps=5, project="never", start="center", pull=first, pull_rate=0.5)
    memory = new_memory(defense, len(x), threat)
    assert memory is not None
    assert memory.tolist() == [first * EPS]
    for _ in range(80):
        with with_memory(defense, memory, torch.arange(4), "cpu", threat) as pulled:
            (term,) = pulled(model, x, y, threat, generator())
        adapt(defense, memory, Step(0.0, 0.0, 0, float(threat.size(term.x_adv - x).mean())), threat)
    step = step_size(EPS, defense.steps, None, defense.reach)
    assert float(memory) / EPS == pytest.approx(auto_pull(EPS, defense.steps, step), rel=1e-3)


@pytest.mark.parametrize(("radius", "eps"), [(0.4, 0.5), (0.9, 0.5), (0.02, 0.01)])
def test_a_batch_multiplies_it_by_the_exponential_of_the_excess(radius: float, eps: float) -> None:
    """In units of 1 / eps, so that a warm-up of eps does not change it."""
    defense = Trades(steps=10, project="never", pull=1.0, pull_rate=0.3)
    expected = 0.7 * math.exp(0.3 * (radius - eps) / eps)
    assert defense.next_pull(0.7, radius, Threat("l2", eps)) == pytest.approx(expected, rel=1e-12)
    assert defense.pulled(0.7, Threat("l2", eps)).pull == pytest.approx(0.7 / eps)


def test_it_stays_where_a_step_forgets_the_last_point_and_where_eps_is_0() -> None:
    defense = PgdAt(steps=10, project="never", pull=1.0, pull_rate=1.0)  # steps of eps / 4
    assert defense.next_pull(3.9, 100.0, Threat("l2", 1.0)) == pytest.approx(4.0)
    assert defense.next_pull(3.9, 0.0, Threat("l2", 0.0)) == 3.9
    assert defense.pulled(3.9, Threat("l2", 0.0)) is defense


def test_a_checkpoint_contains_it(tmp_path: Path) -> None:
    changes = {"defense__name": "pgd-at", "defense__project": "never", "defense__pull": 1.0, "epochs": 1}
    for rate in (0.0, 0.5):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        run = fit(tiny(**changes, defense__pull_rate=rate), tmp_path / str(rate), model=model, how=QUIET)
        memory = take_part(load_tensors(run.last)[0], "memory")
        assert bool(memory) == bool(rate)
    first = PgdAt(project="never", pull=1.0).first_pull(Threat("linf", 0.3))
    assert float(memory[""]) not in (0.0, first)


@pytest.mark.parametrize(
    ("build", "fields", "words"),
    [
        (PgdAt, {"pull": 1.0}, "needs project 'never' and a pull, here 'every' and 1.0"),
        (PgdAt, {"project": "never"}, "needs project 'never' and a pull, here 'never' and 0.0"),
        (TradesSmooth, {"project": "never", "pull": 1.0}, "radii from x include the noise"),
        (Atent, {"project": "never", "pull": 1.0, "sigma": 0.1}, "radii would include the noise"),
    ],
)
def test_it_is_refused_where_it_means_nothing(build: type[PgdAt], fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(pull_rate=0.1, **fields)  # type: ignore[arg-type]
