"""The state of an optimizer as tensors and JSON, for any optimizer of torch, of other packages or of a user."""

from typing import Any

import torch
from torch import Tensor

from atent.errors import UserError

_PLAIN = (bool, int, float, str, type(None))
_OURS = ("params", "lr")  # of a group: the training sets them


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of the state, by parameter number and name, and everything else that the optimizer remembers.

    Hyper-parameters come from the recipe; what an optimizer has changed in its groups is kept.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    shapes: dict[str, list[int]] = {}
    parameters = _parameters(optimizer)
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            key = f"{number}.{name}"
            if not isinstance(value, Tensor):
                values.setdefault(str(number), {})[name] = _packed(value, key, tensors)
                continue
            tensors[key] = value
            if value.dim() > 0 and value.shape != parameters[number].shape:
                shapes[key] = list(value.shape)
    groups = [_changed(group, optimizer.defaults) for group in optimizer.param_groups]
    found = {"values": values, "shapes": shapes, "groups": groups if any(groups) else []}
    return tensors, {key: value for key, value in found.items() if value}


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], listed: list[str] | None, rest: dict[str, Any]
) -> None:
    """Load what `pack_optimizer` returned; `listed` are the names of the tensors, to notice that one is missing."""
    if listed is not None and sorted(tensors) != listed:
        different = min(set(tensors) ^ set(listed))
        raise ValueError(f"the optimizer's state {different} is {'missing' if different in listed else 'not listed'}")
    parameters, shapes = _parameters(optimizer), rest.get("shapes", {})
    states: dict[int, dict[str, Any]] = {}
    tensors = dict(tensors)
    for number, state in rest.get("values", {}).items():
        states[int(number)] = {name: _unpacked(value, tensors) for name, value in state.items()}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        expected = tuple(shapes.get(key, parameter.shape))
        if value.dim() > 0:  # a scalar counts steps
            if value.shape != expected:
                raise ValueError(f"the optimizer's state {key} has the shape {tuple(value.shape)}; expected {expected}")
            if value.shape == parameter.shape:  # in the parameter's own memory layout, as the optimizer made it
                value = torch.empty_like(parameter).copy_(value)
        states.setdefault(int(number), {})[name] = value.detach()
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    for group, changed in zip(optimizer.param_groups, rest.get("groups", []), strict=False):
        group.update(changed)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _changed(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The numbers in a group that were not there at the start, or have changed: some optimizers count steps there."""
    return {
        key: value
        for key, value in group.items()
        if key not in _OURS and isinstance(value, _PLAIN) and (key not in defaults or defaults[key] != value)
    }


def _packed(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON. Its tensors go to `tensors`, and their names take their place."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, list | tuple):
        return {"list": [_packed(one, f"{key}.{k}", tensors) for k, one in enumerate(value)]}
    if isinstance(value, dict):
        return {"table": {str(name): _packed(one, f"{key}.{name}", tensors) for name, one in value.items()}}
    if isinstance(value, _PLAIN):
        return value
    raise UserError(
        f"the optimizer's state {key} is a {type(value).__name__}, which a checkpoint cannot hold; allowed: tensors, "
        "numbers, text, and lists and tables of them"
    )


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_packed`; it takes its tensors out of `tensors`."""
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors.pop(inside)
    if kind == "list":
        return [_unpacked(one, tensors) for one in inside]
    return {name: _unpacked(one, tensors) for name, one in inside.items()}
