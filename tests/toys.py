"""Small things with known answers, and where the optional big ones lie."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from atent.data.dataset import load
from atent.data.images import Images
from atent.models import Shape
from atent.threat import Threat

SHARED = Path(__file__).parents[2] / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared (full MNIST, TRADES weights) is absent"
)
THREATS = [Threat("linf", 0.1), Threat("l2", 0.5)]
UNBOXED = (float("-inf"), float("inf"))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weights: Tensor, bias: Tensor | float = 0.0) -> nn.Sequential:
    """Logits W x + b: the distance to every boundary is known in closed form."""
    layer = nn.Linear(weights.shape[1], len(weights))
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.copy_(torch.as_tensor(bias).expand(len(weights)))
    return nn.Sequential(nn.Flatten(), layer)


def two_class_linear(weights: Tensor, bias: float = 0.0, idle: int = 0) -> nn.Sequential:
    """Logits (0, w.x + b), then `idle` classes that are never chosen: the margin's worst case in a ball is known."""
    rows = torch.stack([torch.zeros_like(weights), weights, *[torch.zeros_like(weights)] * idle])
    return linear(rows, torch.tensor([0.0, bias, *[-100.0] * idle]))


def dual_norm(slope: Tensor, threat: Threat) -> Tensor:
    """How much a unit of the threat's norm can change a function with this slope, over the last dimension."""
    norm: Tensor = slope.norm(p=1 if threat.norm == "linf" else 2, dim=-1)
    return norm


def small_network(classes: int = 3, dropout: float = 0.5) -> nn.Sequential:
    """Convolution, BatchNorm, dropout, linear for 1x6x6 images: everything whose state a method could disturb."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, classes)
    )


def small_batch(count: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    source = generator(1)
    return torch.rand(count, 1, 6, 6, generator=source), torch.randint(classes, (count,), generator=source)


def stand_in(shape: Shape, count: int) -> Images:
    """Random images of a data set's shape, classes in turn."""
    x = torch.randint(256, (count, *shape.image), generator=generator(2), dtype=torch.uint8)
    return Images(x, torch.arange(count) % shape.classes, tuple(map(str, range(shape.classes))))


def own_folder(place: Path, classes: int = 3) -> str:
    """PNGs in a folder per class, thirty each, made of mnist-small."""
    images = load("mnist-small", "train")
    for label in range(classes):
        (place / images.classes[label]).mkdir(parents=True)
        for k in (images.y == label).nonzero()[:30, 0].tolist():
            Image.fromarray(images.pixels()[k, 0].numpy()).save(place / images.classes[label] / f"{k}.png")
    return str(place)
