"""A network is borrowed for an attack and given back exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def borrowed(model: nn.Module, training: bool = False) -> Iterator[nn.Module]:
    """The model in eval (or train) mode with its parameters frozen; afterwards every flag is as before.

    Frozen parameters receive no gradient, so a backward pass to the input skips about half of its work.
    Buffers are not restored: in train mode BatchNorm statistics move, as in any training pass.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        if not (training and model.training):  # layers that their owner froze stay so in a training network
            model.train(training)
        for parameter in trained:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode
