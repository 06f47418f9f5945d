"""A network whose passes run in half precision or compiled; its weights, and the logits it returns, are float32."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from atent.threat import over_pixels

Precision = Literal["off", "bf16", "fp16"]
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PEAK = 256.0  # of the gradient at the logits in fp16: 256 times less than the largest number there


class Accelerated(nn.Module):
    """The network's passes, by torch.autocast in `precision` and by torch.compile if `compiled`.

    Attacks and defenses use it as any network. float16 has no number below 6e-8, and the gradient of a confident
    prediction is smaller; the sign of a 0 would stop its search. So in a pass for the gradient of the input alone, the
    gradient at the logits is brought to a peak of 256 and the input's is divided by the same number: for each image,
    or in train mode, where BatchNorm mixes images, for the batch. Gradients of weights need a scale of the whole loss
    (`LossScale`). bfloat16 has the range of float32 and needs neither.
    """

    def __init__(self, network: nn.Module, precision: Precision = "off", *, compiled: bool = False) -> None:
        super().__init__()
        self.network, self.precision = network, precision
        self._pass = [torch.compile(network) if compiled else network]  # in a list, it is no second submodule

    def forward(self, x: Tensor) -> Tensor:
        search = torch.is_grad_enabled() and x.requires_grad and not any(p.requires_grad for p in self.parameters())
        balanced = search and self.precision == "fp16"
        seen = x.view_as(x) if balanced else x
        with torch.autocast(x.device.type, _HALF.get(self.precision), enabled=self.precision != "off"):
            output = self._pass[0](seen)
        logits: Tensor = output.float()
        if balanced:
            _balance(seen, logits, each=not self.training)
        return logits


def accelerated(network: nn.Module, precision: Precision = "off", *, compiled: bool = False) -> nn.Module:
    """The network itself if nothing is asked for."""
    return Accelerated(network, precision, compiled=compiled) if compiled or precision != "off" else network


def _balance(x: Tensor, logits: Tensor, each: bool) -> None:
    """Multiply the gradient at the logits so that its largest entry is `_PEAK`, and divide that at x again."""
    factor: list[Tensor] = []

    def multiply(gradient: Tensor) -> Tensor:
        sizes = gradient.abs()
        largest = sizes.amax(1) if each else sizes.amax().expand(len(sizes))
        factor.append(torch.where(largest > 0, _PEAK / largest.clamp_min(1e-30), torch.ones_like(largest)))
        return gradient * factor[-1][:, None]

    def divide(gradient: Tensor) -> Tensor:
        return gradient / over_pixels(factor.pop(), gradient)

    logits.register_hook(multiply)
    x.register_hook(divide)


def precision_of(network: Any) -> Precision:
    """The precision in which a network's passes run."""
    return network.precision if isinstance(network, Accelerated) else "off"
