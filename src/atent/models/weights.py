"""Load weights from files, also of other programs; keep some layers from scratch; freeze layers."""

import hashlib
import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from atent.errors import UserError, reason_of, unknown
from atent.models.outside import pretrained_model
from atent.models.standardize import NEW, OLD, parts_of, rename_parts
from atent.storage.files import load_tensors, take_part
from atent.storage.run import Run
from atent.zoo.index import is_zoo, weights_file

_WRAPPED = ("state_dict", "model_state_dict", "model")  # the usual keys of the weights in files of training scripts
_PREFIX = "module."  # DataParallel's and AveragedModel's


def load_weights(model: nn.Module, path: Path, reset: Iterable[str] = ()) -> str:
    """Load the weights of a run, of `zoo:NAME`, a safetensors file or a `.pt` state_dict into the model.

    Returns their sha256. Weights in half precision are cast to the model's, float32.
    Layers named in `reset` keep their weights; all others must be in the file with the same shapes.
    """
    return _load_named(model, read_weights(path), str(path), reset)


def load_pretrained(model: nn.Module, name: str, classes: int, reset: Iterable[str] = ()) -> str:
    """Load the weights that timm or torchvision publish for the network `name`; return their sha256.

    A last layer for another number of classes keeps its weights. A standardizing layer gets the library's numbers.
    """
    found = pretrained_model(name)
    tensors, ours = _named_as(model, found.network.state_dict()), model.state_dict()
    other = {key for key in tensors.keys() & ours.keys() if tensors[key].shape != ours[key].shape}
    start = _network_prefix(model)
    heads = {key.removeprefix(start).rpartition(".")[0] for key in other if len(ours[key]) == classes}
    if parts := parts_of(model):
        for key, values in (("mean", found.mean), ("std", found.std)):
            tensors[f"{parts.standardize}{key}"] = torch.tensor(values).view(1, -1, 1, 1)
    return _load_named(model, tensors, f"the pretrained {name}", [*reset, *heads])


def _load_named(model: nn.Module, tensors: dict[str, Tensor], where: str, reset: Iterable[str]) -> str:
    ours, kept = model.state_dict(), _tensors_of(model, reset)
    found = _named_as(model, tensors)
    # Weights of other programs have no standardizing layer; its mean and std come from the data.
    parts = parts_of(model)
    own = {f"{parts.standardize}{name}" for name in ("mean", "std")} - found.keys() if parts else set()
    wanted = [name for name in ours if name not in kept | own]
    for name in wanted:
        if name not in found:
            raise _misfit(where, name, f"it has no {name}", _network_prefix(model))
        if ours[name].is_floating_point() != found[name].is_floating_point():
            kinds = f"{found[name].dtype} in it, {ours[name].dtype} in the model"
            raise UserError(f"{where} does not fit the model: {name} is {kinds}")
        if found[name].shape != ours[name].shape:
            shapes = f"{tuple(found[name].shape)} in it, {tuple(ours[name].shape)} in the model"
            raise _misfit(where, name, f"{name} is {shapes}", _network_prefix(model))
    left = sorted(name for name in found.keys() - ours.keys() if not _in_layers(name, reset, _network_prefix(model)))
    if left:
        raise UserError(f"{where} does not fit the model: the model has no {left[0]} ({len(left)} such tensors)")
    model.load_state_dict({name: found[name] for name in wanted}, strict=False)
    return weights_hash(model)


def _misfit(where: str, name: str, reason: str, start: str) -> UserError:
    layer = name.removeprefix(start).rpartition(".")[0] or name
    return UserError(
        f"{where} does not fit the model: {reason}; in training, --reset {layer} trains that layer from scratch"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a weights file, a run folder or `zoo:NAME`, by name. Of a checkpoint, those that are evaluated."""
    if is_zoo(path):
        path = weights_file(path)
    path = Run(path).best if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"no weights at {path}; expected a run folder of atent train, a weights file, or zoo:NAME")
    if path.suffix == ".safetensors":
        return _result(load_tensors(path)[0])
    if path.suffix in (".pt", ".pth"):
        return _read_pickled(path)
    raise unknown("kind of weights file", path.name, [".safetensors", ".pt", ".pth"])


def _result(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in a file of ours; of a checkpoint with averaged weights, these (`State.result`)."""
    average = take_part(tensors, "average")
    inside = {name.removeprefix(_PREFIX): tensor for name, tensor in average.items() if name.startswith(_PREFIX)}
    return inside or take_part(tensors, "")


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, runtime, zip and OS errors here
        reason = reason_of(error)
        if isinstance(error, pickle.UnpicklingError):
            reason = "it contains more than tensors, which is not unpickled for safety; save model.state_dict() instead"
        raise UserError(f"cannot read weights from {path}: {reason}") from None
    for name in _WRAPPED:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise UserError(f"{path} is not a state_dict: expected a table of tensors, found {type(found).__name__}")
    return {name: _plain(tensor, f"{path}: {name}") for name, tensor in found.items()}


def _plain(tensor: Tensor, where: str) -> Tensor:
    """A tensor of numbers as any network has them; others, such as sparse ones, are refused."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_complex():
        kind = "quantized" if tensor.is_quantized else "without content" if tensor.is_meta else str(tensor.layout)
        raise UserError(f"{where} is a tensor of {tensor.dtype}, {kind}; allowed: dense tensors of real numbers")
    return tensor


def _named_as(model: nn.Module, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the model's names: DataParallel's prefix removed, or the prefix of our network part added."""
    ours = model.state_dict()
    plain = {name.removeprefix(_PREFIX): tensor for name, tensor in found.items()}
    candidates = [found, plain]
    if parts := parts_of(model):
        candidates += [{f"{parts.network}{name}": tensor for name, tensor in plain.items()}, rename_parts(plain, parts)]
    return max(candidates, key=lambda names: len(names.keys() & ours.keys()))


def freeze(model: nn.Module, layers: Iterable[str]) -> None:
    """Freeze layers: no gradient, and during training no dropout and no update of BatchNorm statistics."""
    frozen = _tensors_of(model, layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"freeze = {list(layers)} leaves nothing to train")


def _tensors_of(model: nn.Module, layers: Iterable[str]) -> set[str]:
    """The names of the parameters and buffers of these layers; an unknown layer is an error."""
    names, chosen, start = list(model.state_dict()), set[str](), _network_prefix(model)
    for layer in layers:
        below = {name for name in names if _in_layers(name, [layer], start)}
        if not below:
            known = {name.removeprefix(start).rpartition(".")[0] for name in names if name.startswith(start)}
            raise unknown("layer", layer, sorted(known)[:20])
        chosen |= below
    return chosen


def _in_layers(name: str, layers: Iterable[str], start: str) -> bool:
    return any(name == start + layer or name.startswith(f"{start}{layer}.") for layer in layers)


def _network_prefix(model: nn.Module) -> str:
    """The prefix of the network's own tensors; not empty if there is a standardizing layer."""
    parts = parts_of(model)
    return parts.network if parts else ""


def weights_hash(model: nn.Module) -> str:
    """sha256 over the names and bytes of the weights and buffers.

    The parts of a standardized network get their old names, so that rows of older runs still match it.
    """
    digest = hashlib.sha256()
    tensors = rename_parts(model.state_dict(), OLD) if parts_of(model) is NEW else model.state_dict()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
