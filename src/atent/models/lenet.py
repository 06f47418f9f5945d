"""Caffe's LeNet, the network of the published certificates on MNIST (Consistency, SmoothAdv, CAT-RS)."""

from torch import Tensor, nn

from atent.network import Shape


class LeNet(nn.Module):
    """5x5 convolutions 20 and 50 without padding, each pooled; linear 800-500-10. 431,080 parameters.

    It has no dropout and no normalization, so train and eval mode are the same.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape.image
        self.features = nn.Sequential(
            nn.Conv2d(channels, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(50 * (height // 4 - 3) * (width // 4 - 3), 500), nn.ReLU(), nn.Linear(500, shape.classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits
