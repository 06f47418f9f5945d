"""Weights from files, ours or foreign: which layers they fit, which start from scratch, which stay as they are."""

import hashlib
import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from atent.errors import UserError, unknown
from atent.models.standardize import NEW, OLD, parts_of, rename_parts
from atent.storage.files import load_tensors, take_part
from atent.storage.run import Run

_WRAPPED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in their files
_PREFIX = "module."  # DataParallel's


def load_weights(model: nn.Module, path: Path, reset: Iterable[str] = ()) -> str:
    """Load a run's best weights, a safetensors file or a `.pt` state_dict into the model; return their sha256.

    Layers named by `reset` keep what they have; everything else must be in the file, and fit.
    """
    ours, anew = model.state_dict(), _tensors_of(model, reset)
    found = _named_as(model, read_weights(path))
    # A foreign network knows nothing of the layer that standardizes its input: that one is the data's.
    parts = parts_of(model)
    own = {f"{parts.standardize}{name}" for name in ("mean", "std")} - found.keys() if parts else set()
    wanted = [name for name in ours if name not in anew | own]
    for name in wanted:
        if name not in found:
            raise _misfit(path, name, f"there is no {name} in it", _behind(model))
        if found[name].shape != ours[name].shape:
            shapes = f"{tuple(found[name].shape)} in it, {tuple(ours[name].shape)} in the model"
            raise _misfit(path, name, f"{name} is {shapes}", _behind(model))
    left = sorted(name for name in found.keys() - ours.keys() if not _below(name, reset, _behind(model)))
    if left:
        raise UserError(f"{path} does not fit the model: the model has no {left[0]} ({len(left)} tensors like that)")
    model.load_state_dict({name: found[name] for name in wanted}, strict=False)
    return weights_hash(model)


def _misfit(path: Path, name: str, reason: str, start: str) -> UserError:
    layer = name.removeprefix(start).rpartition(".")[0] or name
    return UserError(f"{path} does not fit the model: {reason}; in training, --reset {layer} starts that layer anew")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The table of tensors in a weights file or a run folder."""
    path = Run(path).best if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"no weights at {path}; expected a run folder of atent train, or a weights file")
    if path.suffix == ".safetensors":
        return take_part(load_tensors(path)[0], "")
    if path.suffix in (".pt", ".pth"):
        return _read_pickled(path)
    raise unknown("kind of weights file", path.name, [".safetensors", ".pt", ".pth"])


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, runtime, zip and OS errors here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):
            reason = "it holds more than tensors, and nothing else is unpickled here; save model.state_dict() instead"
        raise UserError(f"cannot read weights from {path}: {reason}") from None
    for name in _WRAPPED:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise UserError(f"{path} is not a state_dict: expected a table of tensors, found {type(found).__name__}")
    return found


def _named_as(model: nn.Module, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the model's names: a parallel wrapper's prefix removed, our standardizing one's added."""
    ours = model.state_dict()
    plain = {name.removeprefix(_PREFIX): tensor for name, tensor in found.items()}
    candidates = [found, plain]
    if parts := parts_of(model):
        candidates += [{f"{parts.network}{name}": tensor for name, tensor in plain.items()}, rename_parts(plain, parts)]
    return max(candidates, key=lambda names: len(names.keys() & ours.keys()))


def freeze(model: nn.Module, layers: Iterable[str]) -> None:
    """Leave layers out of the training: no gradient, and in training no dropout and no moving statistics."""
    frozen = _tensors_of(model, layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"freeze = {list(layers)} leaves nothing to train")


def _tensors_of(model: nn.Module, layers: Iterable[str]) -> set[str]:
    """The names of the parameters and buffers of these layers; a layer that is not there is refused."""
    names, chosen, start = list(model.state_dict()), set[str](), _behind(model)
    for layer in layers:
        below = {name for name in names if _below(name, [layer], start)}
        if not below:
            known = {name.removeprefix(start).rpartition(".")[0] for name in names if name.startswith(start)}
            raise unknown("layer", layer, sorted(known)[:20])
        chosen |= below
    return chosen


def _below(name: str, layers: Iterable[str], start: str) -> bool:
    return any(name == start + layer or name.startswith(f"{start}{layer}.") for layer in layers)


def _behind(model: nn.Module) -> str:
    """How the names of a network's own tensors begin: behind our standardizing layer it is a second part."""
    parts = parts_of(model)
    return parts.network if parts else ""


def weights_hash(model: nn.Module) -> str:
    """sha256 over the names and bytes of the weights and buffers.

    A standardized network's parts go by their old names, so that rows of older runs are still known as its own.
    """
    digest = hashlib.sha256()
    tensors = rename_parts(model.state_dict(), OLD) if parts_of(model) is NEW else model.state_dict()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
