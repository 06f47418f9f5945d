"""Stands for your own project: a network that was trained without atent, and tensors in memory."""

import torch
from torch import nn

from atent.data import load

torch.manual_seed(0)
x, y = load("mnist-small", "train").batch(slice(2000))  # pixels in [0, 1], shape (n, channels, height, width)
x_test, y_test = load("mnist-small", "test").batch(slice(200))
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for indices in torch.randperm(len(x)).split(64):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[indices] + 0.1 * torch.randn(len(indices), 1, 28, 28)), y[indices]).backward()
    optimizer.step()
