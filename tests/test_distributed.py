"""Several processes against one: gradients, weights, statistics and rows; small batches, stops, kills and resumes."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from atent.data.augmentation import AUGMENTATIONS
from atent.defenses import Atent, Mma, PgdAt, Standard, Trades
from atent.defenses.protocols import Defense
from atent.errors import Interrupted, UserError
from atent.optim import EntropySGD
from atent.parallel.batch_norm import synchronized
from atent.parallel.gradients import average_gradients
from atent.parallel.order import in_order, turns
from atent.parallel.team import Team, current_team
from atent.randomness import Share, derive, normal_like, uniform_like
from atent.recipe import Recipe
from atent.smoothing.noise import normal_noise
from atent.storage.files import load_tensors
from atent.storage.run import Run
from atent.threat import Threat
from atent.training import fit as fit_module
from atent.training.fit import fit
from atent.training.options import TrainingOptions
from atent.training.step import train_step, with_memory
from processes import result_of, start, together
from short_runs import assert_same_run, tiny
from toys import generator, small_batch, small_network

LINF = Threat("linf", 0.1)


@pytest.mark.parametrize(("images", "size"), [(8, 2), (11, 2), (4, 2), (100, 7), (14, 7)])
def test_a_batch_is_divided_into_parts_of_nearly_equal_size(images: int, size: int) -> None:
    parts = [range(images)[Team(rank, size).part(images)] for rank in range(size)]
    assert [k for part in parts for k in part] == list(range(images))
    assert min(map(len, parts)) >= max(2, max(map(len, parts)) - 1)


@pytest.mark.parametrize(("images", "size"), [(1, 2), (3, 2), (13, 7)])
def test_of_a_batch_with_fewer_than_two_images_for_each_every_process_has_all(images: int, size: int) -> None:
    assert [Team(rank, size).part(images) for rank in range(size)] == [slice(0, images)] * size


def draw_noise(x: Tensor, source: torch.Generator) -> Tensor:
    return normal_noise(x, 3, 0.5, source).movedim(0, 1)


@pytest.mark.parametrize("draw", [uniform_like, normal_like, draw_noise, *AUGMENTATIONS.values()])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_each_image_has_the_random_numbers_of_one_process(
    draw: Callable[[Tensor, torch.Generator], Tensor], order: torch.memory_format
) -> None:
    x = torch.rand(11, 3, 6, 6, generator=generator()).contiguous(memory_format=order)
    alone, teams = derive(0, "batch", 1), [Team(rank, 3) for rank in range(3)]
    shares = [team.share(derive(0, "batch", 1), 11) for team in teams]
    for _ in range(2):  # the streams stay together
        parts = [draw(x[team.part(11)], share) for team, share in zip(teams, shares, strict=True)]
        assert torch.equal(torch.cat(parts), draw(x, alone))


def test_other_numbers_are_drawn_from_a_stream_of_each_process() -> None:
    """A method that draws without `fill`, or for some of the images, must not give two images the same noise."""
    shares = [Team(rank, 2).share(derive(0, "batch", 1), 8) for rank in range(2)]
    assert all(isinstance(share, Share) for share in shares)
    few = torch.zeros(3, 5)
    assert not torch.equal(*(uniform_like(few, share) for share in shares))
    assert not torch.equal(*(torch.rand(4, generator=share) for share in shares))


def double_network(dropout: float = 0.0) -> nn.Sequential:
    return small_network(dropout=dropout).double()


def double_batch(images: int) -> tuple[Tensor, Tensor]:
    x, y = small_batch(images)
    return x.double(), y


def weights_after(
    team: Team, defense: Defense, images: int, sync: bool, batches: int, optimizer: Any, added: dict[str, Any]
) -> tuple[dict[str, Tensor], list[Any]]:
    """The network after some steps in this process, and what the steps returned."""
    model, (x, y), memory = double_network(), double_batch(images), torch.zeros(40, dtype=torch.float64)
    made, steps = optimizer(model.parameters()), []
    with synchronized(model) if sync else nullcontext():
        for k in range(batches):
            indices = torch.arange(images) + k
            source = team.share(derive(0, "batch", k), images)
            part = team.part(images)
            with with_memory(defense, memory, indices, "cpu", LINF) as informed:
                steps.append(train_step(model, made, informed, x[part], y[part], LINF, source, **added))
    return {**model.state_dict(), "memory": memory}, steps


CASES: dict[str, tuple[Defense, dict[str, float], Any]] = {
    "standard": (Standard(), {}, partial(torch.optim.SGD, lr=1.0)),
    "sign search": (PgdAt(steps=10), {}, partial(torch.optim.SGD, lr=0.1)),
    "train mode": (Atent(steps=3, mode="train", share=0.7), {}, partial(torch.optim.SGD, lr=0.1)),
    "awp": (Trades(steps=2), {"awp": 0.1}, partial(torch.optim.SGD, lr=0.1)),
    "gibbs": (PgdAt(steps=2), {"gibbs": 0.1}, partial(torch.optim.SGD, lr=0.1)),
    "mma": (Mma(steps=2), {}, partial(torch.optim.SGD, lr=0.1)),
    "entropy-sgd": (PgdAt(steps=2), {}, partial(EntropySGD, steps=2, noise=0.01)),
}


def all_cases(team: Team, images: int, sync: bool = False) -> dict[str, Any]:
    return {
        name: weights_after(team, defense, images, sync, 2, optimizer, added)
        for name, (defense, added, optimizer) in CASES.items()
    }


@pytest.mark.parametrize(("size", "images"), [(2, 11), (3, 5)])
def test_processes_with_synchronized_batchnorm_train_as_one_process(size: int, images: int) -> None:
    """In double precision steps agree to 1e-9, with every optional part of a step, for even and uneven parts.

    Of 5 images three processes compute all: that is equal without synchronized BatchNorm.
    """
    alone, *processes = all_cases(Team(), images), *together(all_cases, images, images >= 2 * size, size=size)
    for found in processes:
        for name, (tensors, steps) in found.items():
            for key, value in alone[name][0].items():
                assert torch.allclose(tensors[key], value, rtol=0, atol=1e-9), (name, key)
            for ours, theirs in zip(steps, alone[name][1], strict=True):
                assert tuple(ours) == pytest.approx(tuple(theirs), abs=1e-9), name
            assert all(torch.equal(tensors[key], processes[0][name][0][key]) for key in tensors), name


def normalized(team: Team, x: Tensor, upstream: Tensor, momentum: float | None) -> list[Tensor]:
    """Outputs, gradients and statistics of a BatchNorm layer for this process's part of the images."""
    layer, part = nn.BatchNorm2d(3, momentum=momentum).double(), team.part(len(x))
    mine = x[part].clone().requires_grad_()
    with synchronized(layer) if team.size > 1 else nullcontext():
        found = layer(mine)
        (found * upstream[part]).sum().backward()
    assert "forward" not in vars(layer)
    average_gradients(layer, [torch.zeros(())])
    assert mine.grad is not None
    assert layer.weight.grad is not None
    scale = len(current_team().gather(""))  # a mean over processes; the loss here is a sum
    return [found.detach(), mine.grad, layer.weight.grad * scale, *map(torch.Tensor.clone, layer.buffers())]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_synchronized_batchnorm_is_that_of_all_images(momentum: float | None) -> None:
    """Against torch's layer on the whole batch: outputs, input and weight gradients, running statistics."""
    x, upstream = torch.randn(2, 7, 3, 4, 4, generator=generator(), dtype=torch.float64)
    expected, one, two = (
        normalized(Team(), x, upstream, momentum),
        *together(partial(normalized, x=x, upstream=upstream, momentum=momentum)),
    )
    for k in range(2):
        assert torch.allclose(torch.cat([one[k], two[k]]), expected[k], rtol=0, atol=1e-12)
    for ours in (one, two):
        for found, value in zip(ours[2:], expected[2:], strict=True):
            assert torch.allclose(found, value, rtol=0, atol=1e-12)


def ticks(team: Team) -> list[list[str]]:
    """Seven parts whose results come late, in bundles, or not before the end."""
    mine = [f"part {k}" for k in turns(team, range(7))]
    bundles: list[list[str]] = [[], mine[:2], mine[2:]] if team.rank else [mine[:1], [], [], [], mine[1:]]
    return list(in_order(team, bundles))


def test_results_come_in_order_in_every_process() -> None:
    first, *others = together(ticks, size=3)
    assert [part for some in first for part in some] == [f"part {k}" for k in range(7)]
    assert all(other == first for other in others)


def disagree(team: Team) -> list[str]:
    with pytest.raises(UserError) as position:
        team.check_same({"epoch": team.rank}, "position")
    with pytest.raises(UserError) as weights:
        team.check_close(1.0 + team.rank, "weights")
    team.check_close(1.0 + 1e-6 * team.rank, "weights")
    return [str(position.value), str(weights.value), team.first(f"said by {team.rank}")]


def test_processes_that_disagree_are_refused() -> None:
    for position, weights, said in together(disagree):
        assert position.startswith('process 1 of 2 has another position than process 0: {"epoch": 1} instead of')
        assert weights.startswith("the weights of the processes differ (1 to 2)")
        assert said == "said by 0"


def plain(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(196, 10),
    )


def small(**changes: object) -> Recipe:
    """80 images: 8 batches of 10, or of 11 with a last one of 3."""
    sgd = {"optimizer__name": "sgd", "optimizer__lr": 0.05, "batch": 10, "monitor__name": "pgd", "averaging": 0.9}
    return tiny(**{**sgd, "validation": 5920, "epochs": 1, **changes})


def trained(_: Team, recipe: Recipe, out: Path, dropout: float = 0.0) -> None:
    fit(recipe, out, model=plain(dropout), how=TrainingOptions(say=lambda _: None, checkpoint_batches=3))


def differences(one: Run, two: Run) -> list[float]:
    ours, theirs = load_tensors(one.last)[0], load_tensors(two.last)[0]
    assert ours.keys() == theirs.keys()
    return [float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours]


def test_twenty_batches_of_a_sign_search_end_near_the_weights_of_one_process(tmp_path: Path) -> None:
    """In single precision, where rounding flips signs: weights, momenta, average and statistics within 1e-3."""
    changes = {"validation": 5800, "sync_batchnorm": True, "augment": "crop-flip"}
    recipe = small(defense__name="pgd-at", defense__steps=10, **changes)
    trained(Team(), recipe, tmp_path / "one")
    together(trained, recipe, tmp_path / "two")
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    assert max(differences(one, two)) < 1e-3
    (row,), (other,) = one.history(), two.history()
    for key in ("loss", "train_robust", "radius", "clean", "robust"):
        assert other[key] == pytest.approx(row[key], abs=0.02), key


def gradient(team: Team) -> Tensor:
    """Of plain training, by a step of SGD with learning rate 1, in single precision."""
    model, (x, y) = small_network(dropout=0.0), small_batch(11)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    source, part = team.share(derive(0, "batch"), 11), team.part(11)
    with synchronized(model) if team.size > 1 else nullcontext():
        train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), Standard(), x[part], y[part], LINF, source)
    return before - nn.utils.parameters_to_vector(model.parameters()).detach()


def test_the_gradient_of_plain_training_is_that_of_one_process() -> None:
    expected = gradient(Team())
    assert expected.abs().max() > 0.05
    for found in together(gradient):
        assert float((found - expected).abs().max()) < 1e-5


def interrupted(team: Team, recipe: Recipe, out: Path, dropout: float, signum: int) -> str:
    """Train until process 1 sends itself a signal in its fifth batch; returns how a request to stop ended."""
    steps = 0

    def counted(*arguments: Any, **added: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5 and team.rank == 1:
            os.kill(os.getpid(), signum)
        return train_step(*arguments, **added)

    with mock.patch.object(fit_module, "train_step", counted), pytest.raises(Interrupted) as stopped:
        trained(team, recipe, out, dropout)
    return str(stopped.value)


def whole(recipe: Recipe, out: Path, dropout: float) -> Run:
    together(trained, recipe, out, dropout)
    return Run(out)


MMA: dict[str, object] = {"defense__name": "mma", "defense__steps": 1}


def test_a_killed_process_ends_the_others_and_the_job_resumes_bit_for_bit(tmp_path: Path) -> None:
    """BatchNorm of each process, dropout, a memory per image, an average; batches of 11 leave a last one of 3."""
    recipe, dropout = small(**MMA, batch=11), 0.5
    expected = whole(recipe, tmp_path / "whole", dropout)
    kept, ((survivor, answer), (victim, _)) = start(interrupted, recipe, tmp_path / "run", dropout, signal.SIGKILL)
    victim.join()
    killed = time.monotonic()
    with pytest.raises(AssertionError, match=r"LostProcess: another process of this job was lost \(.*closed|reset"):
        result_of(survivor, answer)
    assert time.monotonic() - killed < 5
    assert (victim.exitcode, kept.num_keys() > 0) == (-signal.SIGKILL, True)
    run = Run(tmp_path / "run")
    assert load_tensors(run.last)[1]["batch"] == 3
    together(trained, recipe, run.folder, dropout)
    assert_same_run(expected, run)


def test_a_request_to_stop_in_one_process_stops_all_after_the_same_batch(tmp_path: Path) -> None:
    """Then one process resumes what two began: with synchronized BatchNorm it ends near a run of one."""
    recipe = small(defense__name="pgd-at", sync_batchnorm=True)
    ends = together(interrupted, recipe, tmp_path / "run", 0.0, signal.SIGTERM)
    run = Run(tmp_path / "run")
    assert ends == [f"stopped by SIGTERM; saved: {run.last} (epoch 1, batch 5)"] * 2
    trained(Team(), recipe, run.folder)
    trained(Team(), recipe, tmp_path / "one")
    assert max(differences(Run(tmp_path / "one"), run)) < 1e-3
