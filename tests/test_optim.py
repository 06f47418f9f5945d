import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from atent.errors import UserError
from atent.methods import written_out
from atent.optim.averaging import averaged
from atent.optim.optimizers import Adam, AdamW, Optimizer, Sgd
from atent.optim.outside import make_optimizer, make_rates
from atent.optim.schedule import Schedule
from atent.recipe import load_recipe, recipe_of
from atent.storage.files import load_tensors
from atent.storage.run import Run
from atent.training.fit import fit
from atent.training.optimizer_state import pack_optimizer, unpack_optimizer
from short_runs import QUIET, TINY, assert_same_run
from toys import generator


def test_constant_and_step() -> None:
    assert Schedule().rate(0.0, 10) == 1
    step = Schedule(name="step", milestones=(3, 5), factor=0.1)
    assert [step.rate(epoch / 6, 6) for epoch in range(6)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01])


def test_one_cycle_matches_torchs_own() -> None:
    """Ours starts at 1/25 as torch's does and ends at 0 where torch ends at 1e-4/25."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=101, pct_start=0.21, cycle_momentum=False, final_div_factor=1e9
    )
    ours = Schedule(name="one-cycle", warmup=0.2)
    for k in range(100):
        assert ours.rate(k / 100, 1) == pytest.approx(optimizer.param_groups[0]["lr"], abs=0.012), k
        optimizer.step()
        theirs.step()


def test_cosine_falls_to_zero_after_its_warm_up() -> None:
    cosine = Schedule(name="cosine", warmup=0.1)
    assert cosine.rate(0.1, 1) == 1
    assert cosine.rate(0.55, 1) == pytest.approx(0.5)
    assert cosine.rate(1.0, 1) == pytest.approx(0)


def test_eps_climbs_later_than_the_rate() -> None:
    schedule = Schedule(name="one-cycle", warmup=0.2, eps_warmup=1.5)
    assert schedule.eps_share(0.0) == 0
    assert schedule.eps_share(0.15) == pytest.approx(0.5)
    assert schedule.eps_share(0.31) == 1
    assert Schedule(name="one-cycle").eps_share(0.0) == 1  # no warm-up asked for
    assert Schedule(warmup=0.2, eps_warmup=0).eps_share(0.0) == 1
    wider = Schedule(warmup=0.2, eps_warmup=1.5, eps_peak=1.2)
    assert [wider.eps_share(done) for done in (0, 0.15, 0.3, 1)] == pytest.approx([0, 0.6, 1.2, 1.2])


def test_optimizers_are_torchs() -> None:
    model = nn.Linear(2, 2)
    sgd = Sgd(lr=0.3, momentum=0.8, nesterov=True, weight_decay=1e-3)(model.parameters())
    assert isinstance(sgd, torch.optim.SGD)
    group = sgd.param_groups[0]
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 1e-3)
    assert isinstance(Adam()(model.parameters()), torch.optim.Adam)


@pytest.mark.parametrize("decay", [0.99, 0.997, 0.9999])
def test_average_of_a_network_with_batchnorm_classifies_as_well_as_the_network(decay: float) -> None:
    """Two clouds far from mean 0 and variance 1, where BatchNorm's initial statistics are useless."""
    torch.manual_seed(0)
    y = torch.arange(256) % 2
    x = 50 + 20 * torch.randn(256, 4, generator=generator()) + 10 * y[:, None]
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    average, optimizer = averaged(model, decay), Sgd(lr=0.1)(model.parameters())
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)
    right = [float((network.eval()(x).argmax(1) == y).float().mean()) for network in (model, average.module)]
    assert right[0] > 0.6
    assert right[1] >= right[0] - 0.02


def test_average_forgets_with_the_decay_asked_for() -> None:
    """After many updates the decay is the one given: a jump of the weight is followed by 1 - decay^k of it."""
    model = nn.Linear(1, 1)
    average = averaged(model, 0.9)
    for k in range(200):
        with torch.no_grad():
            model.weight.fill_(0.0 if k < 180 else 1.0)
        average.update_parameters(model)
    assert average.module.state_dict()["weight"].item() == pytest.approx(1 - 0.9**20, rel=1e-5)


@pytest.mark.parametrize("decay", [0.9, 0.997])
def test_whole_numbers_are_copied(decay: float) -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("places", torch.randperm(200, generator=generator()))
    model.register_buffer("mask", torch.tensor([0, 255], dtype=torch.uint8))
    average = averaged(model, decay)
    for _ in range(300):
        model(torch.rand(4, 2))
        average.update_parameters(model)
    for name in ("places", "mask", "num_batches_tracked"):
        assert torch.equal(average.module.state_dict()[name], model.state_dict()[name]), name


def tensors_after(optimizer: Optimizer, steps: int, resumed_at: int | None = None) -> list[torch.Tensor]:
    """The weights after so many steps down a bowl; if `resumed_at` a step, in a new optimizer with the packed state."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    made, source = optimizer(model.parameters()), torch.rand(8, 3, generator=generator())
    for step in range(steps):
        if step == resumed_at:
            tensors, rest = pack_optimizer(made)
            rest = json.loads(json.dumps(rest))  # as a checkpoint's header keeps it
            made = optimizer(model.parameters())
            unpack_optimizer(made, {key: value.clone() for key, value in tensors.items()}, sorted(tensors), rest)

        def closure() -> float:
            made.zero_grad()  # noqa: B023 (called at once)
            loss = (model(source) - source[:, :2]).square().mean()
            loss.backward()
            return float(loss.detach())

        made.step(closure)
    return [parameter.detach().clone() for parameter in model.parameters()]


class Counting(torch.optim.Optimizer):
    """As some packages do: it counts in its group and in plain numbers, and keeps a list of earlier gradients."""

    def __init__(self, params: Any, lr: float = 0.1, depth: int = 3) -> None:
        super().__init__(params, {"lr": lr, "depth": depth, "k": 0})

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        loss = closure()
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["past"] = [*state.get("past", []), p.grad.clone()][-group["depth"] :]
                with torch.no_grad():
                    p -= group["lr"] * sum(state["past"]) / (state["step"] + group["k"])
        return loss


OUTSIDE: list[dict[str, Any]] = [
    {"name": "adamw"},
    {"name": "torch.optim:AdamW", "lr": 0.1, "betas": [0.8, 0.9], "amsgrad": True},
    {"name": "torch.optim:Adafactor", "lr": 0.1},  # its tensors have other shapes than the weights
    {"name": "torch.optim:LBFGS", "max_iter": 2},  # lists of tensors, and plain numbers
    {"name": "torch.optim:ASGD"},
    {"name": "test_optim:Counting", "lr": 0.3},
]


@pytest.mark.parametrize("table", OUTSIDE, ids=lambda table: table["name"])
def test_any_optimizer_is_made_of_its_fields_and_resumed_bit_for_bit(table: dict[str, Any]) -> None:
    optimizer = make_optimizer(table)
    made = optimizer(nn.Linear(3, 2).parameters())
    for key in table.keys() - {"name"}:
        found = made.param_groups[0][key]
        assert (list(found) if isinstance(found, tuple) else found) == table[key]
    assert written_out(table, optimizer)["lr"] == optimizer.lr
    whole = tensors_after(optimizer, 6)
    assert all(map(torch.equal, whole, tensors_after(optimizer, 6, resumed_at=3)))
    assert not all(map(torch.equal, whole, tensors_after(optimizer, 3)))


def test_adamw_is_torchs() -> None:
    made = AdamW(lr=0.3)([nn.Parameter(torch.zeros(1))])
    assert isinstance(made, torch.optim.AdamW)
    assert (made.defaults["lr"], made.defaults["weight_decay"]) == (
        0.3,
        torch.optim.AdamW([torch.ones(1)]).defaults["weight_decay"],
    )


def test_a_state_that_no_checkpoint_can_hold_is_refused() -> None:
    optimizer = torch.optim.SGD([parameter := nn.Parameter(torch.zeros(1))])
    optimizer.state[parameter]["memory"] = object()
    with pytest.raises(UserError, match=r"state 0\.memory is a object, which a checkpoint cannot hold"):
        pack_optimizer(optimizer)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "torch.optim:AdamW", "beta": 1}, r"unknown optimizer field 'beta'; .*known: amsgrad, betas, .*AdamW"),
        ({"name": "torch.optim:AdamW", "lr": -1.0}, "torch.optim:AdamW: Invalid learning rate: -1.0"),
        ({"name": "torch.optim:Adamw"}, "cannot import optimizer 'torch.optim:Adamw'"),
        ({"name": "torch.optim:Optimizer"}, "missing 1 required keyword-only argument: 'defaults'"),
        ({"name": "torch.nn:Linear"}, "torch.nn:Linear cannot be made of {}"),
        ({"name": "adamx"}, "unknown optimizer 'adamx'"),
    ],
)
def test_mistakes_in_an_optimizer_are_told_in_one_line(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        make_optimizer(table)
    assert "\n" not in str(told.value)


SCHEDULES: list[dict[str, Any]] = [
    {"name": "torch.optim.lr_scheduler:CosineAnnealingLR", "T_max": 6},
    {"name": "torch.optim.lr_scheduler:StepLR", "step_size": 2, "gamma": 0.5},
    {"name": "torch.optim.lr_scheduler:OneCycleLR", "max_lr": 0.2, "total_steps": 6},
]


@pytest.mark.parametrize("table", SCHEDULES, ids=lambda table: table["name"])
def test_a_torch_schedule_gives_the_rates_of_torchs_own_loop(table: dict[str, Any]) -> None:
    lr, epochs = 0.3, 6
    _, _, name = table["name"].rpartition(":")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    fields = {key: value for key, value in table.items() if key != "name"}
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, **fields)
    ours = make_rates(table, lr)
    for epoch in range(epochs):
        for batch in (0.0, 0.5, 0.99):  # the rate changes with the epoch
            assert lr * ours.rate((epoch + batch) / epochs, epochs) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert ours.rate(1.0, epochs) == ours.rate(5.5 / 6, epochs)
    assert ours.eps_share(0.0) == 1


def test_a_torch_schedule_may_step_more_often_than_once_an_epoch() -> None:
    table = {"name": "torch.optim.lr_scheduler:LinearLR", "start_factor": 0.5, "total_iters": 10, "steps": 10}
    rates = make_rates(table, 1.0)
    assert [rates.rate(k / 10, 2) for k in range(10)] == pytest.approx([0.5 + 0.05 * k for k in range(10)])


@dataclass(frozen=True)
class Halving:
    """A schedule of a user's own."""

    every: float = 0.25

    def rate(self, done: float, epochs: int) -> float:  # noqa: ARG002 (as schedules are called)
        return float(0.5 ** int(done / self.every))


class Growing(Halving):
    def eps_share(self, done: float) -> float:
        return 0.5 + done / 2


def test_a_users_own_schedule() -> None:
    rates = make_rates({"name": "test_optim:Halving", "every": 0.5}, 0.1)
    assert [rates.rate(k / 4, 9) for k in range(4)] == [1, 1, 0.5, 0.5]
    assert rates.eps_share(0.0) == 1
    assert make_rates({"name": "test_optim:Growing"}, 0.1).eps_share(0.0) == 0.5


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "torch.optim.lr_scheduler:StepLR"}, "missing 1 required keyword-only argument: 'step_size'"),
        (
            {"name": "torch.optim.lr_scheduler:StepLR", "step": 1},
            r"unknown schedule field 'step'; .*known: gamma, step_size",
        ),
        ({"name": "torch.optim.lr_scheduler:ReduceLROnPlateau"}, "needs a metric"),
        ({"name": "torch.optim.lr_scheduler:OneCycleLR", "max_lr": 1.0, "total_steps": 3}, "Tried to step 4 times"),
        ({"name": "test_optim:SCHEDULES"}, "is not a class but of type list; expected a class with a method rate"),
        ({"name": "test_optim:Counting"}, "has no method rate"),
        ({"name": "test_optim:Halving", "often": 2}, "unknown schedule field 'often'; known: every"),
    ],
)
def test_mistakes_in_a_schedule_are_told_in_one_line(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        make_rates(table, 0.1).rate(0.0, 10)
    assert "\n" not in str(told.value)


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    pass


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def test_a_recipe_with_torchs_optimizer_and_schedule_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    changes = {
        "defense.name": "standard",
        "optimizer": {"name": "torch.optim:Adafactor", "lr": 0.02},
        "schedule": {"name": "torch.optim.lr_scheduler:StepLR", "step_size": 1, "gamma": 0.5},
    }
    recipe = load_recipe("demo", TINY | changes)
    assert recipe.optimizer["beta2_decay"] == -0.8  # torch's defaults are written out
    whole, run = fit(recipe, tmp_path / "whole", model=small(), how=QUIET), Run(tmp_path / "cut")

    def stop(line: str) -> None:
        if line.startswith("epoch 2/2"):
            raise Stopped

    with pytest.raises(Stopped):
        fit(recipe, run.folder, model=small(), how=replace(QUIET, say=stop, checkpoint_batches=3))
    assert load_tensors(run.last)[1]["optimizer_rest"]["shapes"]
    fit(load_recipe("demo", TINY | changes), run.folder, model=small(), how=QUIET)
    assert_same_run(run, whole)
    assert recipe_of(run).schedule == changes["schedule"]
    with pytest.raises(UserError, match=r"different: schedule\)"):
        fit(load_recipe("demo", TINY | changes | {"schedule.gamma": 0.1}), run.folder, model=small(), how=QUIET)


def test_a_schedule_by_name_drops_the_fields_of_the_other() -> None:
    named = load_recipe("demo", {"schedule": "torch.optim.lr_scheduler:StepLR", "schedule.step_size": 3})
    assert named.schedule == {"name": "torch.optim.lr_scheduler:StepLR", "step_size": 3}
    ours = load_recipe("demo", {"schedule": "cosine"}).schedule
    assert isinstance(ours, Schedule)
    assert ours.warmup > 0  # of demo's one-cycle: our schedules share their fields


class OfMatrices(torch.optim.SGD):
    """As Muon: it takes matrices alone."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        params = list(params)
        if any(one.dim() != 2 for one in params):
            raise ValueError("only matrices are supported")
        super().__init__(params, lr=lr)


def test_an_optimizer_that_refuses_the_parameters_of_a_network_says_so_in_one_line() -> None:
    made = make_optimizer({"name": f"{__name__}:OfMatrices"})
    with pytest.raises(UserError, match=f"optimizer {__name__}:OfMatrices: only matrices are supported"):
        made([nn.Parameter(torch.zeros(3))])
