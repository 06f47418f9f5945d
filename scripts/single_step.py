"""A network like the one of Wong et al.'s MNIST script, on which single-step training does not collapse.

cd scripts
atent train mnist-linf-fast --model single_step:small_network --out ../runs/single-step-unboxed
atent train mnist-linf-fast --model single_step:small_network --out ../runs/single-step-clamped \
    --set defense.start=uniform
"""

from torch import nn

from atent.network import Shape


def small_network(shape: Shape) -> nn.Module:
    """Two strided convolutions and two linear layers: 166,406 parameters for MNIST."""
    channels, height, width = shape.image
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 100),
        nn.ReLU(),
        nn.Linear(100, shape.classes),
    )
