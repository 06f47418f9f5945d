"""The seven-layer MNIST network of the paper's linf experiments (that of TRADES and of Carlini and Wagner)."""

from collections import OrderedDict

from torch import Tensor, nn

from atent.network import Shape


class SmallCnn(nn.Module):
    """Four 3x3 convolutions (32, 32, 64, 64), two poolings, three linear layers, dropout .5. 312,202 parameters.

    The layers have the names of the TRADES authors' weights, so that these can be loaded unchanged. Convolutions have
    He's normal initialization; the last layer has PyTorch's default (TRADES starts it at zero, on the loss plateau).
    """

    def __init__(self, shape: Shape, dropout: float = 0.5) -> None:
        super().__init__()
        channels, height, width = shape.image
        flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.feature_extractor = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 32, 3),
                relu2=nn.ReLU(),
                maxpool1=nn.MaxPool2d(2),
                conv3=nn.Conv2d(32, 64, 3),
                relu3=nn.ReLU(),
                conv4=nn.Conv2d(64, 64, 3),
                relu4=nn.ReLU(),
                maxpool2=nn.MaxPool2d(2),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(flat, 200),
                relu1=nn.ReLU(),
                drop=nn.Dropout(dropout),
                fc2=nn.Linear(200, 200),
                relu2=nn.ReLU(),
                fc3=nn.Linear(200, shape.classes),
            )
        )
        for module in self.feature_extractor:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features = self.feature_extractor(x)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits
