"""Residual networks for small images (He et al. 2016, https://arxiv.org/abs/1512.03385)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from atent.network import Shape


class ResNet(nn.Module):
    """A 3x3 stem, stages of two-layer blocks that halve the image and double the width, average pooling.

    `padded`: shortcuts between stages subsample and pad with zero channels ("option A", no parameters);
    otherwise they are 1x1 convolutions with BatchNorm.
    """

    def __init__(self, shape: Shape, blocks: tuple[int, ...], width: int, padded: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(shape.image[0], width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        stages: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(blocks):
            outside = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(_Block(inside, outside, stride, padded))
                inside = outside
        self.blocks = nn.Sequential(*stages)
        self.classifier = nn.Linear(inside, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(torch.relu(self.stem(x)))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, padded: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside:
            self.shortcut = (
                _PaddedShortcut(outside - inside)
                if padded
                else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class _PaddedShortcut(nn.Module):
    """Every second pixel, and zeros for the new channels, half of them before and half after the old ones."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.before = extra // 2
        self.after = extra - self.before

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))
