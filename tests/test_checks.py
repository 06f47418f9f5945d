"""Checks fire on networks that only look robust, and stay silent on honest ones."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atent.ascent import input_gradient
from atent.attacks import Pgd
from atent.data.dataset import open_data
from atent.data.images import Images
from atent.evaluation.checks import Sample, check_network, check_range
from atent.evaluation.target import open_target
from atent.losses import cross_entropy
from atent.storage.checks import keep_checks
from atent.threat import Threat
from toys import SHARED, needs_shared

LINF = Threat("linf", 0.1)


@pytest.fixture(scope="module")
def images() -> Images:
    return open_data("mnist-small").images("test")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Honest, and not robust at all."""
    return linear_network()


def linear_network(adversary: float = 0.0) -> nn.Module:
    """A linear network after some steps on mnist-small, whose images FGSM has changed by `adversary`."""
    torch.manual_seed(0)
    x, y = open_data("mnist-small").images("train").batch(slice(None))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        change = input_gradient(lambda x: cross_entropy(model(x), y), x).sign() if adversary else 0.0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model((x + adversary * change).clamp(0, 1)), y).backward()
        optimizer.step()
    return model


class Changed(nn.Module):
    """The network with a change around it."""

    def __init__(self, network: nn.Module, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.network, x)


@pytest.mark.parametrize("threat", [LINF, Threat("l2", 1.0)], ids=str)
def test_an_honest_network_raises_nothing(network: nn.Module, images: Images, threat: Threat) -> None:
    assert check_network(network, images, threat) == []
    assert check_range(network, images) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model, x: 1e4 * model(x), ["no input gradient", "softmax"]),
        (lambda model, x: model((x * 8).round() / 8), ["no input gradient", "random search", "same grey"]),
        (lambda model, x: model(x + 0.1 * torch.randn_like(x)), ["two passes", "random"]),
        (lambda model, x: model(x).softmax(1), ["are probabilities", "return the logits"]),
        (lambda model, x: model(x).log_softmax(1), ["log-probabilities", "return the logits"]),
    ],
    ids=["logits x 1e4", "quantized", "noise", "probabilities", "log-probabilities"],
)
def test_what_only_looks_robust_is_told(
    network: nn.Module, images: Images, change: Callable[[nn.Module, Tensor], Tensor], words: list[str]
) -> None:
    signs = check_network(Changed(network, change), images, LINF)
    assert all(any(word in sign for sign in signs) for word in words), signs
    assert all("\n" not in sign for sign in signs)


def test_one_step_that_beats_many_is_told(network: nn.Module, images: Images) -> None:
    """Off the clean images, the gradient points the other way: later steps undo the first."""

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # noqa: ARG004
            return -gradient

    clean = {tuple(row) for row in images.batch(slice(100))[0].flatten(1)[:, 300:500].tolist()}

    def change(model: nn.Module, x: Tensor) -> Tensor:
        untouched = torch.tensor([tuple(row) in clean for row in x.detach().flatten(1)[:, 300:500].tolist()])
        logits: Tensor = model(torch.where(untouched[:, None, None, None], x, Turned.apply(x)))  # type: ignore[no-untyped-call]
        return logits

    signs = check_network(Changed(network, change), images, LINF)
    assert any("one step breaks more than twenty" in sign for sign in signs), signs


def test_units_that_are_off_are_told(network: nn.Module, images: Images) -> None:
    """Black and white images, and in each corner a unit that 49 pixels switch on together: then the class is 0."""

    def change(model: nn.Module, x: Tensor) -> Tensor:
        logits: Tensor = model((x > 0.5).float())
        corners = nn.functional.avg_pool2d(x, 7)[:, 0, ::3, ::3].flatten(1)
        units = torch.relu(corners - 0.25).sum(1, keepdim=True)
        return logits + 1000 * units * torch.eye(10)[0]

    x, _ = images.batch(slice(100))
    white = 255 * (x > 0.5).byte()
    y = network(white / 255).argmax(1)
    black_and_white = Images(white, y, images.classes)
    signs = check_network(Changed(network, change), black_and_white, Threat("linf", 0.3))
    (sign,) = [sign for sign in signs if "random search" in sign]
    hidden = 100 * 4 * 49 / 784
    assert f"100 % of the pixels have a gradient of exactly 0, {hidden:.0f} % because a ReLU is off" in sign


def test_points_made_on_another_network_that_beat_the_gradients_are_told(network: nn.Module, images: Images) -> None:
    quantized = Changed(network, lambda model, x: model((x * 8).round() / 8))
    (alone, together) = (check_network(quantized, images, LINF, other=other) for other in (None, network))
    assert together[:-1] == alone
    assert re.match(r"points that PGD-20 made on the other network break \d\d of the \d\d images", together[-1])


@pytest.mark.parametrize("made_on", ["plain", "robust"])
def test_an_honest_network_is_not_suspected_for_another_ones_points(
    made_on: str, network: nn.Module, images: Images
) -> None:
    robust = linear_network(adversary=0.03)
    one, other = (robust, network) if made_on == "plain" else (network, robust)
    threat = Threat("linf", 0.03)
    sample = Sample(one, *images.batch(slice(100)), threat, 0)
    assert 20 < int(sample.left(Pgd(steps=20)).sum()) < 90  # images are left that the points could break
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    assert check_network(one, images, threat, other=other.train()) == []
    assert other.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_another_pixel_range_is_suspected(network: nn.Module, images: Images) -> None:
    upside_down = Changed(network, lambda model, x: model((1 - x) * 255))
    (sign,) = check_range(upside_down, images)
    assert "pixel range" in sign
    assert "standardization" in sign


@needs_shared
def test_the_trades_authors_network_raises_nothing() -> None:
    target = open_target(
        SHARED / "weights" / "trades-mnist-smallcnn.pt", model="small-cnn", data="mnist", data_dir=Path(SHARED / "data")
    )
    images = target.images.take(slice(50))
    assert check_network(target.network, images, Threat("linf", 0.3), other=linear_network()) == []


def test_each_precision_and_each_set_of_images_has_its_own_file_and_older_names_stay(tmp_path: Path) -> None:
    header = {"threat": "linf:0.3", "data": "toy", "model": "net", "weights": "aaaa"}
    for more in ({}, {"amp": "bf16"}, {"images": "abcd"}):
        keep_checks(tmp_path, {**header, **more}, [])
    names = {path.name for path in (tmp_path / "checks").glob("*.json")}
    assert len(names) == 3
    assert "linf-0.3-toy-7b0d3420.json" in names
