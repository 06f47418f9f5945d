"""A network in other formats. Each is checked: it must give the network's answers on a hundred images."""

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from atent.errors import UserError
from atent.network import ROUNDING, answers

IMAGES = 100


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A path to write to; what is there at the end of the block is renamed to `path`, after an error it is removed."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporters warn of: operators of torchvision, and their own use of old functions."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def write_onnx(network: nn.Module, x: Tensor, path: Path) -> None:
    """Write the network as ONNX, with any number of images; onnxruntime must answer as the network does."""
    try:
        importlib.import_module("onnxscript")
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UserError(f"--onnx: {error}; pip install 'atent[export]' installs what it needs") from None
    with aside(path) as part, quiet():
        shapes = ({0: torch.export.Dim("images")},)
        program = torch.onnx.export(
            network, (x[:2],), dynamic_shapes=shapes, input_names=["pixels"], output_names=["logits"], verbose=False
        )
        assert program is not None
        program.save(part)
        session = runtime.InferenceSession(part.read_bytes(), providers=["CPUExecutionProvider"])
        check_same(network, x, lambda images: session.run(None, {"pixels": images.numpy()})[0], "onnxruntime")


def write_program(network: nn.Module, x: Tensor, path: Path) -> None:
    """Write the network by torch.export, with any number of images; the loaded program must answer as it does."""
    with aside(path) as part, quiet():
        exported = torch.export.export(network, (x[:2],), dynamic_shapes=({0: torch.export.Dim("images")},))
        torch.export.save(exported, part)
        program = torch.export.load(part).module()
        check_same(network, x, lambda images: program(images).detach().numpy(), "torch.export")


def check_same(network: nn.Module, x: Tensor, other: Callable[[Tensor], object], name: str) -> None:
    """Refuse a format whose logits differ from the network's by more than rounding, or in a prediction."""
    ours = answers(network, x)
    theirs = torch.from_numpy(np.asarray(other(x)))
    change = float((ours - theirs).abs().max() / ours.abs().max().clamp_min(1e-30))
    flips = int((ours.argmax(1) != theirs.argmax(1)).sum())
    if change > ROUNDING or flips:
        raise UserError(
            f"{name} does not answer as the network: {flips} of {len(x)} predictions differ, logits by {change:.2g} of "
            f"the largest; allowed: {ROUNDING:g}. Nothing was written"
        )
