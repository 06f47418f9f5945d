"""Wide residual networks (Zagoruyko and Komodakis 2016, https://arxiv.org/abs/1605.07146)."""

import torch
from torch import Tensor, nn

from atent.network import Shape


class WideResNet(nn.Module):
    """WRN-depth-widen: three stages of (depth - 4) / 6 pre-activation blocks, 16, 32, 64 channels times `widen`.

    WRN-34-10 has 46,160,474 parameters. The "about 48 million" of the paper includes a block that TRADES' code builds
    but never uses.
    """

    def __init__(self, shape: Shape, depth: int, widen: int) -> None:
        super().__init__()
        count = (depth - 4) // 6
        self.stem = nn.Conv2d(shape.image[0], 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        inside = 16
        for stage in range(3):
            outside = 16 * 2**stage * widen
            for block in range(count):
                blocks.append(_Block(inside, outside, stride=2 if stage > 0 and block == 0 else 1))
                inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inside)
        self.classifier = nn.Linear(inside, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.bn1(x))
        inner: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        straight: Tensor = x if self.shortcut is None else self.shortcut(active)
        return straight + inner
