"""An attack of your own: raise the class that comes second. Command line: --attack own_attack:RunnerUp."""

from dataclasses import dataclass

import torch
from torch import nn

from atent import ascend, cross_entropy
from atent.data import load


@dataclass(frozen=True)
class RunnerUp:
    steps: int = 10
    title: str = "RunnerUp"  # the name in tables

    def __call__(self, model, x, y, threat, generator):
        second = model(x).detach().scatter(1, y[:, None], -torch.inf).argmax(1)
        # Ascend minus the loss of the second class, shape (n,); the last point of the path is returned.
        *_, x_adv = ascend(lambda x: -cross_entropy(model(x), second), x, threat, steps=self.steps, generator=generator)
        return x_adv


if __name__ == "__main__":
    torch.manual_seed(0)
    train, test = load("mnist-small", "train"), load("mnist-small", "test")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for indices in torch.randperm(len(train)).split(64):
        x, y = train.batch(indices)
        optimizer.zero_grad()
        cross_entropy(model(x), y).mean().backward()
        optimizer.step()
    x, y = test.batch(slice(500))
    x_adv = RunnerUp()(model, x, y, "linf:0.1", torch.Generator().manual_seed(0))
    clean, robust = ((model(images).argmax(1) == y).float().mean().item() for images in (x, x_adv))
    print(f"500 test images: clean {clean:.1%}, {RunnerUp().title} at linf:0.1 {robust:.1%}")
