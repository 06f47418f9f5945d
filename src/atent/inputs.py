"""Checks of what methods are called with (images in the threat's box, labels of the network's classes) and return."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from atent.errors import UserError
from atent.threat import TOLERANCE, Threat

_KNOWN: ContextVar[tuple[Tensor, ...]] = ContextVar("known", default=())


@contextmanager
def known(x: Tensor) -> Iterator[None]:
    """In the block these images and their labels are not checked: they were, or are made so that they are right.

    A check reads numbers from the device, and waits for all work that was given to it.
    """
    token = _KNOWN.set((*_KNOWN.get(), x))
    try:
        yield
    finally:
        _KNOWN.reset(token)


def _is_known(x: Tensor) -> bool:
    return any(x is one for one in _KNOWN.get())


def check_images(x: Tensor, threat: Threat | str) -> Threat:
    """Raise a UserError unless x is a batch of images in the threat's box; returns the threat, parsed if it is text.

    An unboxed threat allows any finite values. There is one transfer from the device.
    """
    threat = Threat.parse(threat)
    if _is_known(x):
        return threat
    _check_kind(x)
    low, high = _read(*_extremes(x))
    _check_range(low, high, threat.box)
    return threat


@contextmanager
def checked(model: nn.Module, x: Tensor, y: Tensor | None, threat: Threat | str) -> Iterator[Threat]:
    """As `check_images`; also check the labels, against the number of classes of the network's first logits.

    Every attack and defense begins with it. There is one transfer from the device: the highest label is checked when
    the first logits arrive, because their shape gives the number of classes. Without labels only the images are
    checked.
    """
    threat = Threat.parse(threat)
    if _is_known(x):
        yield threat
        return
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}; allowed: a torch.nn.Module")
    _check_kind(x)
    if y is None:
        check_images(x, threat)
        yield threat
        return
    _check_labels(x, y)
    low, high, least, most = _read(*_extremes(x), y.min(), y.max())
    _check_range(low, high, threat.box)
    if least < 0:
        raise UserError(f"the labels go from {least:.0f} to {most:.0f}; allowed: 0 to the number of classes - 1")
    if isinstance(model, torch.jit.ScriptModule):  # it does not support hooks
        with torch.no_grad():
            _check_known(int(most), model(x[:1]))
        yield threat
        return
    with _first_pass(model, x, int(most)):
        yield threat


@contextmanager
def _first_pass(model: nn.Module, x: Tensor, label: int) -> Iterator[None]:
    """Observe the network's first pass: it must accept images of this shape and have a class for the label."""
    inside = False

    def begins(*_: Any) -> None:
        nonlocal inside
        inside = True

    def ends(_: nn.Module, given: Any, logits: Any) -> None:
        nonlocal inside
        inside = False
        remove()
        images = len(given[0]) if given and isinstance(given[0], Tensor) else len(x)
        if isinstance(logits, Tensor) and logits.dim() and len(logits) != images:
            shape = tuple(logits.shape)
            raise UserError(f"the network returned {shape} for {images} images; expected ({images}, classes)")
        _check_known(label, logits)

    hooks = (model.register_forward_pre_hook(begins), model.register_forward_hook(ends))

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    try:
        yield
    except RuntimeError as error:
        if not inside or type(error) is not RuntimeError:  # such as torch.OutOfMemoryError
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"the network does not take images of shape {tuple(x.shape)}: {reason}") from error
    finally:
        remove()


def check_points(
    x_adv: Tensor,
    x: Tensor,
    threat: Threat,
    attack: str | Callable[[], str],
    indices: Sequence[int] | None = None,
    minimal: bool = False,
) -> tuple[Tensor, Tensor]:
    """The size of each perturbation and whether it is in the ball; only a minimal attack's may be outside of it.

    `attack` is the name of the attack that returned x_adv, or gives it; `indices` are those of the examples.
    """

    def refused(points: str) -> UserError:
        return UserError(f"{attack if isinstance(attack, str) else attack()} returned {points}")

    if not isinstance(x_adv, Tensor) or x_adv.dtype != x.dtype:
        found = x_adv.dtype if isinstance(x_adv, Tensor) else type(x_adv).__name__
        raise refused(f"{found}; allowed: a tensor of {x.dtype}, as the images are")
    if x_adv.shape != x.shape:
        raise refused(f"points of shape {tuple(x_adv.shape)} for images of shape {tuple(x.shape)}")
    size, near, boxed = threat.measure(x_adv, x)
    bad = ~(boxed & (near | minimal))
    if bad.any():
        k = int(bad.nonzero()[0])
        where = f"{threat}" if boxed[k] else f"the pixel box {threat.box}"
        example = k if indices is None else indices[k]
        raise refused(f"a point outside {where} for example {example}: size {float(size[k]):.8g}")
    return size, near


def _check_known(label: int, logits: Any) -> None:
    if isinstance(logits, Tensor) and logits.dim() == 2 and label >= logits.shape[1]:
        classes = logits.shape[1]
        raise UserError(f"label {label} for a network of {classes} classes; allowed: 0 to {classes - 1}")


def _check_kind(x: Tensor) -> None:
    """Raise a UserError unless x is a batch of floating-point images."""
    if not isinstance(x, Tensor):
        raise UserError(f"the images are a {type(x).__name__}; allowed: a torch.Tensor of pixels in [0, 1]")
    if x.dim() < 2:
        raise UserError(
            f"images of shape {tuple(x.shape)}; allowed: (n, channels, height, width), or (n, ...) as the network needs"
        )
    if len(x) == 0 or x.numel() == 0:
        raise UserError(f"images of shape {tuple(x.shape)}; allowed: a batch of one image or more")
    if not x.is_floating_point():
        raise UserError(f"images of {x.dtype}; allowed: floating-point pixels in [0, 1], as x.float() / 255 gives them")


def _check_labels(x: Tensor, y: Tensor) -> None:
    if not isinstance(y, Tensor):
        raise UserError(f"the labels are a {type(y).__name__}; allowed: a torch.Tensor of torch.int64")
    if y.shape != (len(x),):
        one = "; x[None] makes a batch of a single image" if y.numel() == 1 else ""
        raise UserError(
            f"labels of shape {tuple(y.shape)} for images of shape {tuple(x.shape)}; allowed: ({len(x)},), "
            f"one class number per image{one}"
        )
    if y.dtype != torch.int64:
        raise UserError(f"labels of {y.dtype}; allowed: class numbers of torch.int64, as y.long() gives them")
    if y.device != x.device:
        raise UserError(f"labels on {y.device}, images on {x.device}; allowed: one device for both")


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value, read in memory order: torch would copy a channels-last tensor."""
    in_memory = x.detach().permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return in_memory.min(), in_memory.max()


def _read(*values: Tensor) -> list[float]:
    """The values as numbers, in one transfer from the device."""
    numbers: list[float] = torch.stack([value.float() for value in values]).tolist()
    return numbers


def _check_range(low: float, high: float, box: tuple[float, float]) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"the images hold NaN or infinite values; allowed: pixels in [{box[0]:g}, {box[1]:g}]")
    if box[0] - TOLERANCE <= low and high <= box[1] + TOLERANCE:
        return
    bytes_once = low >= 0 and 2 < high <= 255
    cure = (
        "divide them by 255"
        if bytes_once
        else "standardize inside the model, e.g. nn.Sequential(atent.Standardize(mean, std), network)"
    )
    raise UserError(f"the images go from {low:.7g} to {high:.7g}; allowed: pixels in [{box[0]:g}, {box[1]:g}]; {cure}")
