import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atent.errors import UserError
from atent.models import MODELS, Shape, Standardize, Standardized
from atent.models.weights import freeze, load_weights, read_weights, weights_hash
from atent.storage.files import save_tensors
from atent.training.step import set_training
from toys import small_network

SHAPE = Shape((1, 28, 28), 10)
HEAD = "classifier.fc3"
Wrap = Callable[[nn.Module, list[float], list[float]], nn.Module]


def make(classes: int = 10, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS["small-cnn"](Shape((1, 28, 28), classes))


def test_weights_load_from_safetensors_and_from_pt(tmp_path: Path) -> None:
    model = MODELS["small-cnn"](SHAPE)
    save_tensors(tmp_path / "w.safetensors", model.state_dict(), {})
    torch.save(model.state_dict(), tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        other = MODELS["small-cnn"](SHAPE)
        assert weights_hash(other) != weights_hash(model)
        assert load_weights(other, tmp_path / name) == weights_hash(model)


class Payload:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('executed')",)


def test_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    model = MODELS["small-cnn"](SHAPE)
    torch.save(MODELS["lenet5"](SHAPE).state_dict(), tmp_path / "other.pt")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Payload()))
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0")
    (tmp_path / "weights.bin").write_bytes(b"")
    for name in (
        "other.pt",
        "evil.pt",
        "list.pt",
        "torn.safetensors",
        "weights.bin",
        "absent.safetensors",
        "absent.pt",
    ):
        with pytest.raises(UserError, match=name) as caught:
            load_weights(model, tmp_path / name)
        assert "\n" not in str(caught.value), name


def test_weights_are_found_in_a_training_scripts_file_and_behind_a_parallel_wrappers_prefix(tmp_path: Path) -> None:
    model, other = make(), make(seed=1)
    tensors = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": tensors, "best": 0.5}, tmp_path / "w.pth")
    assert load_weights(other, tmp_path / "w.pth") == weights_hash(model)


def in_sequence(network: nn.Module, mean: list[float], std: list[float]) -> nn.Sequential:
    """A user's own standardized network; our first versions' were such, so its names are theirs."""
    return nn.Sequential(Standardize(mean, std), network)


WRAPPERS = [Standardized, in_sequence]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_foreign_networks_weights_go_behind_our_standardizing_layer(tmp_path: Path, wrap: Wrap) -> None:
    model, inner = make(), make(seed=1)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    wrapped = wrap(inner, [0.5], [0.25])
    load_weights(wrapped, tmp_path / "w.pt")
    assert weights_hash(inner) == weights_hash(model)
    assert [float(buffer) for buffer in wrapped.buffers()] == [0.5, 0.25]


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("wrote", WRAPPERS)
def test_a_standardized_networks_weights_bring_the_numbers_that_they_were_trained_with(
    tmp_path: Path, wrote: Wrap, wrap: Wrap
) -> None:
    """Under the present names and under those of our first versions; the hash in older rows stays theirs."""
    given, other = wrote(make(), [0.5], [0.25]), wrap(make(seed=2), [0.1], [0.1])
    torch.save(given.state_dict(), tmp_path / "w.pt")
    assert load_weights(other, tmp_path / "w.pt") == weights_hash(given)
    assert [float(buffer) for buffer in other.buffers()] == [0.5, 0.25]
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(other.eval()(x), given.eval()(x))


def test_a_standardized_networks_parts_have_names() -> None:
    names = Standardized(nn.Linear(1, 1), [0.5], [0.25]).state_dict()
    assert list(names) == ["standardize.mean", "standardize.std", "network.weight", "network.bias"]


def test_a_reset_layer_keeps_its_own_start_and_may_have_another_shape(tmp_path: Path) -> None:
    torch.save(make().state_dict(), tmp_path / "ten.pt")
    three = make(classes=3, seed=1)
    head = three.get_submodule(HEAD).weight.clone()  # type: ignore[operator]
    with pytest.raises(
        UserError, match=r"classifier\.fc3\.weight is \(10, 200\) in it, \(3, 200\).*--reset classifier\.fc3"
    ):
        load_weights(three, tmp_path / "ten.pt")
    load_weights(three, tmp_path / "ten.pt", reset=[HEAD])
    tensors = three.state_dict()
    assert torch.equal(tensors[f"{HEAD}.weight"], head)
    for name, tensor in read_weights(tmp_path / "ten.pt").items():
        assert name.startswith(HEAD) or torch.equal(tensors[name], tensor)


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    tensors: dict[str, Any] = dict(make().state_dict())
    torch.save(tensors | {"extra.weight": torch.zeros(1)}, tmp_path / "more.pt")
    with pytest.raises(UserError, match=r"no extra\.weight"):
        load_weights(make(), tmp_path / "more.pt")
    del tensors[f"{HEAD}.bias"]
    torch.save(tensors, tmp_path / "less.pt")
    with pytest.raises(UserError, match=r"it has no classifier\.fc3\.bias"):
        load_weights(make(), tmp_path / "less.pt")


def test_frozen_layers_get_no_gradient_and_their_statistics_stay() -> None:
    model = small_network()
    freeze(model, ["0", "1"])  # convolution and BatchNorm
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    set_training(model)
    assert [module.training for module in model] == [False, False, True, True, True, True]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    model(torch.rand(4, 1, 6, 6)).square().sum().backward()
    optimizer.step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"5.weight", "5.bias"}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_layers_are_named_without_our_standardizing_layer(tmp_path: Path, wrap: Wrap) -> None:
    """A user's `1` is their second layer, not the part behind ours."""
    network = small_network()
    model = wrap(network, [0.5], [0.25])
    torch.save(model.state_dict(), tmp_path / "w.pt")
    freeze(model, ["1"])
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    assert frozen == {"1.weight", "1.bias"}
    other = small_network(classes=7)
    load_weights(wrap(other, [0.5], [0.25]), tmp_path / "w.pt", reset=["5"])
    assert torch.equal(other[0].weight, network[0].weight)  # type: ignore[arg-type]
    assert other[5].weight.shape == (7, 64)


def test_unknown_layers_and_a_network_frozen_whole_are_refused() -> None:
    with pytest.raises(UserError, match=r"unknown layer 'head'; known: .*classifier\.fc3"):
        freeze(make(), ["head"])
    with pytest.raises(UserError, match="leaves nothing to train"):
        freeze(make(), ["feature_extractor", "classifier"])
