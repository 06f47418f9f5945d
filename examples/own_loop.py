"""Adversarial training in your own loop: the defense gives loss terms, the rest is plain PyTorch."""

import torch
from torch import nn

from atent import Pgd, PgdAt
from atent.data import load

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
train, test = load("mnist-small", "train"), load("mnist-small", "test")
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
defense = PgdAt(steps=3)
threat = "linf:0.1"

for indices in torch.randperm(len(train), generator=generator).split(64):
    x, y = train.batch(indices)  # pixels in [0, 1]
    optimizer.zero_grad()
    for term in defense(model, x, y, threat, generator):
        term.loss.mean().backward()
    optimizer.step()

x, y = test.batch(slice(500))
x_adv = Pgd(steps=10)(model, x, y, threat, generator)
clean, robust = ((model(images).argmax(1) == y).float().mean().item() for images in (x, x_adv))
print(f"500 test images: clean {clean:.1%}, PGD-10 at {threat} {robust:.1%}")
