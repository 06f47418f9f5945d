import sys
from collections import OrderedDict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from atent.data.dataset import load
from atent.errors import UserError
from atent.models import MODELS, Shape, Standardize, Standardized
from atent.models.build import build_model, build_trained
from atent.models.weights import load_pretrained, load_weights
from atent.network import counted, predict
from toys import SHARED, needs_shared

MNIST, CIFAR = Shape((1, 28, 28), 10), Shape((3, 32, 32), 10)
COUNTS = {
    "small-cnn": (MNIST, 312_202),
    "wide-cnn": (MNIST, 1_171_002),
    "lenet": (MNIST, 431_080),
    "lenet5": (MNIST, 3_274_634),
    "resnet-20": (CIFAR, 269_722),
    "resnet-110": (CIFAR, 1_727_962),
    "resnet-18": (CIFAR, 11_173_962),
    "wrn-28-4": (CIFAR, 5_849_050),
    "wrn-28-10": (CIFAR, 36_479_194),
    "wrn-34-10": (CIFAR, 46_160_474),
}


def test_every_model_is_counted() -> None:
    assert COUNTS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    shape, count = COUNTS[name]
    with torch.device("meta"):
        model = MODELS[name](shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", ["small-cnn", "wide-cnn", "lenet", "lenet5", "resnet-20", "resnet-18", "wrn-28-4"])
@pytest.mark.parametrize("shape", [Shape((1, 28, 28), 10), Shape((3, 32, 32), 7)], ids=str)
def test_logits_for_any_small_image(name: str, shape: Shape) -> None:
    model = MODELS[name](shape).eval()
    logits = model(torch.rand(2, *shape.image))
    assert logits.shape == (2, shape.classes)
    assert logits.isfinite().all()


def test_standardize_gives_mean_zero_and_deviation_one() -> None:
    x = 0.3 + 0.2 * torch.randn(100, 2, 16, 16)
    out = Standardize((0.3, 0.3), (0.2, 0.2))(x)
    assert out.mean().abs() < 0.02
    assert abs(out.std() - 1) < 0.02


@needs_shared
def test_trades_network_loads_and_has_its_published_clean_accuracy() -> None:
    model = MODELS["small-cnn"](MNIST)
    load_weights(model, SHARED / "weights" / "trades-mnist-smallcnn.pt")
    model.eval()
    images = load("mnist", "test", SHARED / "data")
    right = 0
    for part in torch.arange(len(images)).split(500):
        x, y = images.batch(part)
        right += int((predict(model, x) == y).sum())
    assert right == 9948


def stand_in_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that we call of libraries that cannot be installed beside every CPU build of torch.

    They know a classifier and, as torchvision does, a segmentation network whose builder fetches weights.
    """

    def create(
        name: str, num_classes: int, in_chans: int = 3, pretrained: bool = False, weights: object = None
    ) -> torch.nn.Module:
        assert name == "resnet18", "only the classifier may be built"
        assert not pretrained
        assert weights is None
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * in_chans, num_classes))

    def list_models(module: ModuleType | None = None) -> list[str]:
        return ["resnet18"] if module is models else ["fcn_resnet50", "resnet18"]

    timm, torchvision, models = ModuleType("timm"), ModuleType("torchvision"), ModuleType("torchvision.models")
    functions: dict[ModuleType, dict[str, object]] = {
        timm: {"create_model": create, "is_model": lambda name: name.partition(".")[0] == "resnet18"},
        torchvision: {},
        models: {"get_model": create, "list_models": list_models},
    }
    for module, content in functions.items():
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    "name",
    [
        "timm:hf-hub:someone/network",  # a download
        "timm:local-dir:folder",
        "timm:_private",
        "timm:models.registry",
        "torchvision:fcn_resnet50",  # a download
        "torchvision:_utils",
        "torchvision:resnet.resnet18",
        "torchvision:",
    ],
)
def test_a_librarys_name_reaches_nothing_but_its_classifiers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    stand_in_libraries(monkeypatch)
    with pytest.raises(UserError, match=rf"^unknown model '{name}'; known: classifiers of .*list_models\(\)$"):
        build_model(name, Shape((3, 8, 8), 4))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_networks_of_other_libraries_are_built_for_the_shape(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    stand_in_libraries(monkeypatch)
    network = build_model(f"{library}:resnet18", Shape((3, 8, 8), 4))
    assert network(torch.rand(2, 3, 8, 8)).shape == (2, 4)
    if library == "torchvision":
        with pytest.raises(UserError, match=r"does not take images of shape \(1, 8, 8\)"):
            build_model("torchvision:resnet18", Shape((1, 8, 8), 4))


MEAN, STD, OWN_CLASSES = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25), 7


def pretrained_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, and with weights for seven classes, which a network with other classes cannot have."""
    stand_in_libraries(monkeypatch)

    def network(classes: int = OWN_CLASSES) -> torch.nn.Module:
        body = [("flat", torch.nn.Flatten()), ("body", torch.nn.Linear(192, 5)), ("relu", torch.nn.ReLU())]
        return torch.nn.Sequential(OrderedDict([*body, ("fc", torch.nn.Linear(5, classes))]))

    def published() -> torch.nn.Module:
        torch.manual_seed(1)
        return network()

    def create(name: str, pretrained: bool = False, num_classes: int = OWN_CLASSES, in_chans: int = 3) -> Any:
        assert (name, in_chans) == ("resnet18", 3)
        found: Any = published() if pretrained else network(num_classes)
        found.pretrained_cfg = {"mean": MEAN, "std": STD}
        return found

    weights = SimpleNamespace(transforms=lambda: SimpleNamespace(mean=list(MEAN), std=list(STD)))

    def get_model(name: str, weights: object = None, num_classes: int = OWN_CLASSES) -> Any:
        assert name == "resnet18"
        return published() if weights is not None else network(num_classes)

    monkeypatch.setattr(sys.modules["timm"], "create_model", create)
    for key, value in {
        "get_model": get_model,
        "get_model_weights": lambda _: SimpleNamespace(DEFAULT=weights),
    }.items():
        monkeypatch.setattr(sys.modules["torchvision.models"], key, value, raising=False)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_pretrained_target_takes_pixels(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """It has the library's weights, behind the library's standardization."""
    pretrained_libraries(monkeypatch)
    network = build_trained(f"{library}:resnet18", Shape((3, 8, 8), OWN_CLASSES))
    x = torch.rand(2, 3, 8, 8)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    inside = sys.modules["timm"].create_model("resnet18", pretrained=True)
    assert torch.allclose(network(x), inside((x - mean) / std))
    with pytest.raises(UserError, match=rf"{library}:resnet18' returned \(2, 7\).*expected logits of shape \(2, 10\)"):
        build_trained(f"{library}:resnet18", Shape((3, 8, 8), 10))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize("classes", [4, OWN_CLASSES])
def test_training_starts_from_pretrained_weights(monkeypatch: pytest.MonkeyPatch, library: str, classes: int) -> None:
    """All layers; the last one only if it has as many classes."""
    pretrained_libraries(monkeypatch)
    name = f"{library}:resnet18"
    published = sys.modules["timm"].create_model("resnet18", pretrained=True).state_dict()
    torch.manual_seed(2)
    network = build_model(name, Shape((3, 8, 8), classes))
    head = network.state_dict()["fc.weight"].clone()
    model = Standardized(network, [0.0] * 3, [1.0] * 3)
    load_pretrained(model, name, classes)
    found = model.state_dict()
    assert torch.equal(found["network.body.weight"], published["body.weight"])
    assert torch.equal(found["network.fc.weight"], published["fc.weight"] if classes == OWN_CLASSES else head)
    assert found["standardize.mean"].flatten().tolist() == pytest.approx(MEAN)
    assert found["standardize.std"].flatten().tolist() == pytest.approx(STD)


def test_only_networks_of_a_library_are_pretrained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"pretrained weights of 'lenet5'; allowed: of timm:NAME or torchvision:NAME"):
        load_pretrained(MODELS["lenet5"](MNIST), "lenet5", 10)
    for module in ("timm", "torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, module, None)
    for library in ("timm", "torchvision"):
        with pytest.raises(UserError, match=f"cannot import {library}.*; pip install {library}$") as told:
            build_trained(f"{library}:resnet18", Shape((3, 8, 8), 4))
        assert "\n" not in str(told.value)


def test_a_failed_download_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pretrained_libraries(monkeypatch)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host\nand a page more")

    monkeypatch.setattr(sys.modules["timm"], "create_model", fail)
    with pytest.raises(UserError, match=r"no pretrained weights of 'timm:resnet18': OSError: no route to host$"):
        build_trained("timm:resnet18", Shape((3, 8, 8), 4))


class Several(torch.nn.Module):
    """A network whose output has several fields, as those of transformers have."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, shape.classes))

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layers(x), hidden=x)


def test_logits_are_taken_out_of_an_output() -> None:
    shape = Shape((1, 6, 6), 3)
    x = torch.rand(2, 1, 6, 6)
    named = build_model("test_models:Several", shape)
    assert torch.equal(named(x), named.layers(x))  # type: ignore[operator]
    assert list(named.state_dict()) == ["layers.1.weight", "layers.1.bias"]  # names as before
    with counted(named) as passes:
        named(x)
    assert passes.forward == 2
    given = Several(shape)
    assert build_model(given, shape) is given
    assert isinstance(given(x), SimpleNamespace)
