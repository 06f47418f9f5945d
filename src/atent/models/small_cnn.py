"""The seven-layer MNIST network of the paper's linf experiments (of TRADES, Carlini and Wagner), and a wider one."""

from collections import OrderedDict

from torch import Tensor, nn

from atent.network import Shape


class SmallCnn(nn.Module):
    """Four 3x3 convolutions (32, 32, 64, 64), two poolings, three linear layers, dropout .5. 312,202 parameters.

    `widths` are the channels of the convolutions, `hidden` is the width of the linear layers. The layers have the names
    of the TRADES authors' weights, so that these can be loaded unchanged. Convolutions have He's normal initialization;
    the last layer has PyTorch's default (TRADES starts it at zero, on the loss plateau).
    """

    def __init__(
        self,
        shape: Shape,
        dropout: float = 0.5,
        widths: tuple[int, int, int, int] = (32, 32, 64, 64),
        hidden: int = 200,
    ) -> None:
        super().__init__()
        channels, height, width = shape.image
        first, second, third, fourth = widths
        flat = fourth * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.feature_extractor = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, first, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(first, second, 3),
                relu2=nn.ReLU(),
                maxpool1=nn.MaxPool2d(2),
                conv3=nn.Conv2d(second, third, 3),
                relu3=nn.ReLU(),
                conv4=nn.Conv2d(third, fourth, 3),
                relu4=nn.ReLU(),
                maxpool2=nn.MaxPool2d(2),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(flat, hidden),
                relu1=nn.ReLU(),
                drop=nn.Dropout(dropout),
                fc2=nn.Linear(hidden, hidden),
                relu2=nn.ReLU(),
                fc3=nn.Linear(hidden, shape.classes),
            )
        )
        for module in self.feature_extractor:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features = self.feature_extractor(x)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


class WideCnn(SmallCnn):
    """`small-cnn` with 8, 32, 128, 128 channels and linear layers of 400, without dropout. 1,171,002 parameters.

    3.8 times the parameters, 1.6 times the operations: the first layer, on the largest image, is narrower.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, dropout=0.0, widths=(8, 32, 128, 128), hidden=400)
