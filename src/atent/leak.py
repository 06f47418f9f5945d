"""Gradients that pass through ReLU where it is off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from atent.methods import readable

# Their in-place forms are told apart, since a network may use the changed tensor.
_RELU = (torch.relu, Tensor.relu)
_IN_PLACE = (torch.relu_, Tensor.relu_)


@readable
@contextmanager
def leaky_gradients(slope: float) -> Iterator[None]:
    """In the block the derivative of ReLU is `slope` instead of 0 where its input is negative; its values stay.

        y = max(u, 0),   dL/du = dL/dy (1 if u > 0, else slope)

    A network that is trained at a large linf radius switches most first units off, so that most pixels have a gradient
    of exactly 0, and no sign step moves them. Xie et al. 2020, https://arxiv.org/abs/2006.14536, replace the derivative
    of ReLU in the search of a training by that of a smooth function; ours keeps it where the unit is on.

    It holds for every `relu` of torch that runs in the block in this thread, in a network of whatever kind; scripted
    networks keep their own derivatives. A slope of 0 changes nothing.
    """
    if slope == 0:
        yield
        return
    with _Leaking(slope):
        yield


class _Leaking(TorchFunctionMode):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        in_place = function in _IN_PLACE
        if function is functional.relu:
            in_place = bool(args[1] if len(args) > 1 else given.get("inplace", False))
        elif function not in _RELU and not in_place:
            return function(*args, **given)
        leaky: Callable[[Tensor, float, bool], Tensor] = _LeakyRelu.apply
        return leaky(args[0] if args else given["input"], self.slope, in_place)


class _LeakyRelu(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, u: Tensor, slope: float, in_place: bool) -> Tensor:
        y = u.relu_() if in_place else u.relu()
        if in_place:
            context.mark_dirty(u)
        context.save_for_backward(y)  # positive where u is
        context.slope = slope
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = context.saved_tensors
        return torch.ops.aten.leaky_relu_backward(gradient, y, context.slope, False), None, None
