"""A network in use: frozen for a while, its logits checked, its passes counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from atent.errors import UserError

ROUNDING = 1e-4  # of the largest logit: sums in another order differ less, random networks more


class Shape(NamedTuple):
    """The shape (channels, height, width) of an image and the number of classes."""

    image: tuple[int, int, int]
    classes: int


@contextmanager
def borrowed(model: nn.Module, training: bool = False) -> Iterator[nn.Module]:
    """The model in eval (or train) mode with its parameters frozen; afterwards every flag is as before.

    Frozen parameters receive no gradient, so a backward pass to the input skips about half of its work.
    Buffers are not restored: in train mode BatchNorm statistics move, as in any training pass.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        if not (training and model.training):  # layers that the user froze stay in eval mode
            model.train(training)
        for parameter in trained:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode


@contextmanager
def logits_only(model: nn.Module) -> Iterator[nn.Module]:
    """In the block the model returns the `logits` of its outputs, if they have such a field; afterwards as before.

    Networks of transformers, and some of torchvision in train mode, return an object with several fields.
    """
    hook = unwrap_logits(model)
    try:
        yield model
    finally:
        if hook is not None:
            hook.remove()


def unwrap_logits(model: nn.Module) -> RemovableHandle | None:
    """As `logits_only`, until the hook that is returned is removed; None: nothing was to be done.

    A hook and not a wrapping network, so that the weights keep their names.
    """
    known = _only_logits in model._forward_hooks.values()
    if known or isinstance(model, torch.jit.ScriptModule):  # that returns tensors, and does not support hooks
        return None
    return model.register_forward_hook(_only_logits, prepend=True)


def _only_logits(_: nn.Module, __: Any, output: Any) -> Any:
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


@dataclass
class Passes:
    """The number of images in forward passes, in backward passes, and in backward passes to the weights."""

    forward: int = 0
    backward: int = 0
    to_weights: int = 0

    @property
    def work(self) -> int:
        """The operations, in forward passes: a backward pass has as many, that to the weights as many again."""
        return self.forward + self.backward + self.to_weights


@contextmanager
def counted(model: nn.Module) -> Iterator[Passes]:
    """Count the passes through the model until the end of the block."""
    passes = Passes()

    def backward(gradient: Tensor) -> None:
        passes.backward += len(gradient)

    def backward_to_weights(gradient: Tensor) -> None:
        backward(gradient)
        passes.to_weights += len(gradient)

    def forward(module: nn.Module, arguments: Any, logits: Any) -> None:  # noqa: ARG001 (a hook's)
        if isinstance(logits, Tensor):
            passes.forward += len(logits)
            if logits.requires_grad:
                trained = any(parameter.requires_grad for parameter in module.parameters())
                logits.register_hook(backward_to_weights if trained else backward)

    hook = model.register_forward_hook(forward)
    try:
        yield passes
    finally:
        hook.remove()


@torch.no_grad()
def answers(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of each image; a UserError if they are NaN, infinite or of the wrong shape."""
    logits = model(x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returned {shape} for {len(x)} images; expected logits of shape ({len(x)}, classes)")
    if not logits.isfinite().all():
        raise UserError("the model returned NaN or infinite logits")
    return logits


class Repeat(NamedTuple):
    """How a second pass over the same images differs from the first.

    `change` is the largest difference of logits, as a share of the largest logit; `flips` counts changed predictions.
    """

    change: float
    flips: int

    @property
    def random(self) -> bool:
        """Whether the network is randomized: the change is more than rounding."""
        return self.change > ROUNDING


def repeat(model: nn.Module, x: Tensor, first: Tensor | None = None) -> Repeat:
    """Pass the images through the model twice, or once if the `first` logits are given, and compare the logits."""
    first = answers(model, x) if first is None else first
    again = answers(model, x)
    change = (again - first).abs().max() / again.abs().max().clamp_min(1e-30)
    return Repeat(float(change), int((again.argmax(1) != first.argmax(1)).sum()))


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """The predicted class of each image."""
    return answers(model, x).argmax(1)
