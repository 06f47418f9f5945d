import pytest
import torch
from torch import nn
from torch.nn import functional

from atent.optim.averaging import averaged
from atent.optim.optimizers import Adam, Sgd
from atent.optim.schedule import Schedule
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
