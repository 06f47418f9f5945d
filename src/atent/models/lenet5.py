"""The MNIST network of the paper's l2 experiments (AdverTorch's LeNet5, used by MMA)."""

from torch import Tensor, nn

from atent.network import Shape


class LeNet5(nn.Module):
    """5x5 convolutions 32 and 64 with padding 2, each pooled; linear 3136-1024-10. 3,274,634 parameters.

    It has no dropout and no normalization, so train and eval mode are the same.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape.image
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * (height // 4) * (width // 4), 1024), nn.ReLU(), nn.Linear(1024, shape.classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits
