"""Figure 2: loss, Gibbs density and samples of the chain around one point, in one dimension, at three temperatures."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atent.ascent import ascend, last
from atent.randomness import derive
from atent.reproduce.style import BLUE, DARK, ORANGE, PALE_BLUE, drawing
from atent.threat import Threat

X, PULL = 0.4, 20.0
TEMPERATURES = (1.0, 0.2, 0.04)
CHAINS, STEPS, STEP = 4000, 1500, 1e-3
RANGE = (-0.35, 1.15)


def loss(x: Tensor) -> Tensor:
    """Two hills, the higher one on the right of x."""
    return 0.5 * torch.exp(-(((x - 0.22) / 0.1) ** 2)) + 1.3 * torch.exp(-(((x - 0.62) / 0.13) ** 2))


def density(temperature: float, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Gibbs density exp((L(x') - pull/2 (x' - x)^2) / T) / Z at these points, which are evenly spaced."""
    penalized = loss(torch.from_numpy(at)).numpy() - PULL / 2 * (at - X) ** 2
    weight = np.exp((penalized - penalized.max()) / temperature)
    return np.asarray(weight / np.trapezoid(weight, at))


def sample(temperature: float, chains: int = CHAINS, steps: int = STEPS) -> NDArray[np.float32]:
    """The ends of chains of the defense `atent` with direction raw, never projected, without the pixel box."""
    x = torch.full((chains, 1, 1, 1), X)
    points = ascend(
        lambda point: loss(point).flatten(),
        x,
        Threat("l2", 1.0).unboxed(),
        steps=steps,
        step=STEP,
        start="center",
        direction="raw",
        pull=PULL,
        temperature=temperature,
        project="never",
        generator=derive(0, "figure2"),
    )
    return np.asarray(last(points).flatten().numpy())


def draw(path: Path) -> None:
    with drawing(path, 1, 1 + len(TEMPERATURES), (10, 3.2), width_ratios=(1.15, 1, 1, 1)) as (figure, grid, words):
        words.append(f"Loss, Gibbs density and ends of {CHAINS:,} chains around x = {X}.")
        first, *others = grid[0]
        at = np.linspace(*RANGE, 600)
        height = loss(torch.from_numpy(at)).numpy()
        first.plot(at, height, color=DARK, label="loss L(x')")
        first.plot(at, height - PULL / 2 * (at - X) ** 2, color=BLUE, ls="--", label="L(x') - pull/2 (x' - x)$^2$")
        first.set(ylim=(-1.1, 1.5), title="loss, and what\nthe chain climbs")
        for axes, temperature in zip(others, TEMPERATURES, strict=True):
            ends = sample(temperature)
            axes.hist(ends, bins=np.linspace(*RANGE, 86), density=True, color=PALE_BLUE, label="ends of chains")
            axes.plot(at, density(temperature, at), color=BLUE, label="Gibbs density")
            mean = float(loss(torch.from_numpy(ends)).mean())
            axes.set(yticks=[], title=f"temperature {temperature:g}\nmean loss {mean:.2f}")
            axes.spines["left"].set_visible(False)
            words.append(f"Temperature {temperature:g}: mean loss {mean:.4f}.")
        for axes in grid[0]:
            axes.axvline(X, color=ORANGE, lw=1.2, ls=":")
            axes.set_xticks([0, X, 1], ["0", "x", "1"])
            axes.set_xlabel("x'")
        handles = [*first.get_legend_handles_labels()[0], *others[0].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=10)
