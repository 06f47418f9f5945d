"""Train with Gaussian noise, smooth the network, and certify images."""

import torch
from torch import nn

from atent import Smoothed, Smoothing
from atent.data import load

sigma = 0.25
torch.manual_seed(0)
train, test = load("mnist-small", "train"), load("mnist-small", "test")
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for indices in torch.randperm(len(train)).split(64):
    x, y = train.batch(indices)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x + sigma * torch.randn_like(x)), y).backward()
    optimizer.step()

# Up to n draws of the noise per image; each certificate is wrong with probability alpha at most.
radii = (0.0, 0.25)
settings = Smoothing(sigma, n=1000, alpha=0.001, radii=radii)
x, y = test.batch(slice(50))
certificates = Smoothed(model, sigma).certify(x, settings)
for radius in radii:
    correct = [c.prediction == label and c.radius >= radius for c, label in zip(certificates, y.tolist(), strict=True)]
    print(f"50 test images: {sum(correct) / len(correct):.0%} certified at l2 radius {radius}")
