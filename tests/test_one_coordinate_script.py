"""`scripts/one_coordinate.py`: the objective has the drift of the paper's Eq. 12."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.ascent import input_gradient
from atent.losses import cross_entropy


def test_the_drift_pulls_the_farthest_coordinate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """-gamma/2 sign(x'_i - x_i) at i = argmax |x' - x| of each image, 0 elsewhere."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    script = importlib.import_module("one_coordinate")
    generator = torch.Generator().manual_seed(0)
    x, point = torch.rand(2, 5, 1, 3, 3, generator=generator, dtype=torch.double).unbind()
    y = torch.tensor([0, 1, 0, 1, 1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).double().requires_grad_(False)
    climbed = input_gradient(lambda at: script.penalized(model, x, y, at, 3.33), point)
    drift = (climbed - input_gradient(lambda at: cross_entropy(model(at), y), point)).flatten(1)
    apart = (point - x).flatten(1)
    expected = torch.zeros_like(apart)
    for row, column in enumerate(apart.abs().argmax(1)):
        expected[row, column] = -3.33 / 2 * apart[row, column].sign()
    torch.testing.assert_close(drift, expected)
