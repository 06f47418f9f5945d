"""A network that is opened to be judged or used answers as it will be judged."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.evaluation.target import open_network, open_target
from atent.models import Shape
from atent.training.fit import fit
from short_runs import QUIET, tiny

SHAPE = Shape((1, 28, 28), 10)


def make() -> nn.Module:
    """Everything that answers otherwise in train mode."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(144, 10)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short training, and its weights alone."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    network = make()
    fit(tiny(defense__name="standard", epochs=1), folder, model=network, how=QUIET)
    torch.save(network.state_dict(), folder / "alone.pt")
    return folder


WAYS: dict[str, Callable[[Path], nn.Module]] = {
    "a run": lambda run: open_target(run, model=make(), examples=9).network,
    "a file": lambda run: open_target(run / "alone.pt", model=make(), data="mnist-small", examples=9).network,
    "a function": lambda _: open_target("test_target:make", data="mnist-small", examples=9).network,
    "a file's network alone": lambda run: open_network(run / "alone.pt", SHAPE, "test_target:make"),
    "a function's network alone": lambda _: open_network("test_target:make", SHAPE, "small-cnn"),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_opened_network_says_the_same_twice_and_stays_as_it_is(way: str, run: Path) -> None:
    network = WAYS[way](run)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    x = torch.rand(20, 1, 28, 28)
    assert torch.equal(network(x), network(x))
    torch.testing.assert_close(network(x)[:1], network(x[:1]), atol=1e-5, rtol=0)  # in train mode BatchNorm would mix
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not any(module.training for module in network.modules())
