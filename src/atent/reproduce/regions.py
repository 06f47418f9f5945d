"""Figure 1: decision regions of a three-layer network on two digits, in a t-SNE layout of clean and attacked images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atent.attacks import Pgd
from atent.evaluation.target import Target, open_target
from atent.models import Shape
from atent.randomness import derive
from atent.reproduce.engine import Place
from atent.reproduce.plan import Figure
from atent.reproduce.style import BLUE, DARK, ORANGE, PALE_BLUE, PALE_ORANGE, drawing
from atent.reproduce.tsne import embed
from atent.threat import Threat

IMAGES = {"smoke": 20, "cpu": 120, "full": 120}
NEIGHBOURS, GRID = 6, 120
HIDDEN = 100


class ThreeLayers(nn.Sequential):
    """Three linear layers with ReLU between them, 100 units wide. The paper gives no more than the number of layers."""

    def __init__(self, shape: Shape) -> None:
        pixels = shape.image[0] * shape.image[1] * shape.image[2]
        layers = [nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        super().__init__(nn.Flatten(), *layers, nn.Linear(HIDDEN, shape.classes))


def draw(figure: Figure, place: Place, path: Path) -> None:
    """All networks share one layout: of the images, and of these images as attacked on each network."""
    targets = [_target(row.network, place) for row in figure.rows]
    threat = Threat.parse(place.recipe(figure.rows[0].network).threat)
    x, y = targets[0].images.batch(slice(IMAGES[place.budget]))
    attacked = [_attacked(target.network, x, y, threat) for target in targets]
    points = torch.cat([x, *attacked])
    layout = embed(points.flatten(1).double().numpy(), iterations=500)
    with drawing(path, 1, len(targets), (3.0 * len(targets), 3.5)) as (canvas, grid, words):
        words.append(f"{figure.title}, attacked at {threat}.")
        for k, (row, target) in enumerate(zip(figure.rows, targets, strict=True)):
            with torch.no_grad():
                share = target.network(points).softmax(1)[:, 1].double().numpy()
            own = slice((k + 1) * len(x), (k + 2) * len(x))
            wrong = (share[own] > 0.5) != (y == 1).numpy()
            axes = grid[0][k]
            _fill(axes, layout, share)
            for label, marker, color in ((0, "o", ORANGE), (1, "^", BLUE)):
                places = layout[: len(x)][(y == label).numpy()]
                name = target.images.classes[label]
                axes.scatter(*places.T, s=22, marker=marker, color=color, edgecolors="white", lw=0.4, label=name)
            axes.scatter(*layout[own][wrong].T, s=26, marker="x", color=DARK, lw=1.3, label="attacked, misclassified")
            clean, robust, *_ = (place.number(row, measure) for measure in row.cells.values())
            numbers = f"clean {clean.value:.1f}, attacked {robust.value:.1f}" if clean and robust else "not measured"
            axes.set(title=f"{row.label}\n{numbers}", xticks=[], yticks=[])
            words.append(f"{row.label}: {numbers}.")
        handles, labels = grid[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3)


def _target(network: str, place: Place) -> Target:
    recipe = place.recipe(network)
    folder = place.trained(network) or place.home / network
    return open_target(folder, model=recipe.model, data=recipe.data, data_dir=place.data_dir)


def _attacked(network: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    return Pgd(steps=40)(network, x, y, threat, derive(0, "figure1"))


def _fill(axes: Any, layout: NDArray[np.float64], share: NDArray[np.float64]) -> None:
    """Colour each place of the plane by what the network predicts for the nearest points."""
    low, high = layout.min(0), layout.max(0)
    edge = 0.06 * (high - low)
    across, down = (np.linspace(low[k] - edge[k], high[k] + edge[k], GRID) for k in (0, 1))
    places = np.stack(np.meshgrid(across, down), -1).reshape(-1, 1, 2)
    distance = ((places - layout[None]) ** 2).sum(-1)
    nearest = np.argpartition(distance, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    weight = 1 / (1e-9 + np.take_along_axis(distance, nearest, 1))
    mean = (weight * share[nearest]).sum(1) / weight.sum(1)
    image = mean.reshape(GRID, GRID)
    axes.contourf(across, down, image, levels=[-0.1, 0.5, 1.1], colors=[PALE_ORANGE, PALE_BLUE])
    axes.contour(across, down, image, levels=[0.5], colors=[DARK], linewidths=1)
