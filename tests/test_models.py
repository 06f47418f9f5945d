import sys
from types import ModuleType

import pytest
import torch

from atent.data.dataset import load
from atent.errors import UserError
from atent.models import MODELS, Shape, Standardize
from atent.models.build import build_model
from atent.models.weights import load_weights
from atent.network import predict
from toys import SHARED, needs_shared

MNIST, CIFAR = Shape((1, 28, 28), 10), Shape((3, 32, 32), 10)
COUNTS = {
    "small-cnn": (MNIST, 312_202),
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


@pytest.mark.parametrize("name", ["small-cnn", "lenet5", "resnet-20", "resnet-18", "wrn-28-4"])
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
