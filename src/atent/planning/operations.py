"""Floating-point operations of a network for one image, by torch's counter: multiplying and adding are two."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from atent.network import Passes, Shape, borrowed


@dataclass(frozen=True)
class Operations:
    """Of a forward pass, of a backward pass to the image, and of one to the image and the weights."""

    forward: int
    backward: int
    to_weights: int

    def of(self, passes: Passes) -> float:
        """The operations of so many passes."""
        to_image = passes.backward - passes.to_weights
        return passes.forward * self.forward + to_image * self.backward + passes.to_weights * self.to_weights


def count_operations(network: nn.Module, shape: Shape) -> Operations:
    """Count them on the meta device, where nothing is computed; a network that needs numbers is run on one image.

    The network is moved there: give one that is not needed afterwards.
    """
    try:
        return _counted(network.to("meta"), torch.zeros(1, *shape.image, device="meta"))
    except (NotImplementedError, RuntimeError):
        return _counted(network.to_empty(device="cpu"), torch.zeros(1, *shape.image))


def _counted(network: nn.Module, x: Tensor) -> Operations:
    with borrowed(network):
        forward = _run(network, x)
        backward = _run(network, x.requires_grad_()) - forward
    network.eval()
    return Operations(forward, backward, _run(network, x) - forward)


def _run(network: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        logits = network(x)
        if logits.requires_grad:
            logits.sum().backward()
    return int(counter.get_total_flops())
