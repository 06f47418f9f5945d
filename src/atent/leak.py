"""Gradients that pass through ReLU where it is off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from atent.errors import UserError
from atent.methods import readable

_RELU = (torch.relu, Tensor.relu)
_IN_PLACE = (torch.relu_, Tensor.relu_)


@readable
@contextmanager
def leaky_gradients(leak: float) -> Iterator[None]:
    """In the block the derivative of ReLU is `leak` instead of 0 where it is off; its values stay.

        y = max(u, 0),   dL/du = dL/dy (1 if u > 0, else leak)

    At a large linf radius on dark images a robust network has most units of its first layer off, so that the gradient
    of most pixels is exactly 0, and no sign step moves them. Xie et al. 2020, https://arxiv.org/abs/2006.14536, replace
    the derivative of ReLU in the search of a training by that of a smooth function; ours keeps it where the unit is on.

    It holds for torch's `relu`, as a function, method or module, in this thread. Other functions with a flat part
    (`relu6`, `clamp`), scripted and exported networks and layers under reentrant checkpointing keep their own
    derivatives. A leak of 0 changes nothing.
    """
    if not 0 <= leak < 1:
        raise UserError(f"leak {leak:g}; allowed: 0 or more, below 1")
    if leak == 0:
        yield
        return
    with _Leaking(leak):
        yield


class _Leaking(TorchFunctionMode):
    def __init__(self, leak: float) -> None:
        super().__init__()
        self.leak = leak

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
        return leaky(args[0] if args else given["input"], self.leak, in_place)


class _LeakyRelu(torch.autograd.Function):
    """In two parts, as torch.func wants it. The operators are those that a mode around this one does not see."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, leak: float, in_place: bool) -> Tensor:  # noqa: ARG004
        y: Tensor = torch.ops.aten.relu_(u) if in_place else torch.ops.aten.relu(u)
        return y

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, float, bool], output: Tensor) -> None:
        u, context.leak, in_place = inputs
        if in_place:
            context.mark_dirty(u)
        context.save_for_backward(output)  # positive where u is

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = context.saved_tensors
        return torch.ops.aten.leaky_relu_backward(gradient, y, context.leak, False), None, None
