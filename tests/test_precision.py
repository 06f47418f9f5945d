"""Passes in half precision, compiled passes, and the number of times that a training step reads from the device."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from atent.ascent import input_gradient
from atent.defenses import Atent, Defense, Mart, PgdAt, Standard, Trades
from atent.errors import Interrupted
from atent.inputs import known
from atent.losses import cross_entropy
from atent.models.accelerated import Accelerated, Precision, accelerated
from atent.network import borrowed
from atent.storage.files import load_tensors
from atent.threat import Threat
from atent.training.fit import fit
from atent.training.loss_scale import LossScale, NotFiniteError
from atent.training.step import Step, train_step
from short_runs import QUIET, assert_same_run, tiny
from test_cli import atent
from toys import generator, small_batch, small_network

HALF: list[Precision] = ["bf16", "fp16"]
half = pytest.mark.parametrize("precision", HALF)
LINF = Threat("linf", 0.1)


def confident() -> tuple[nn.Module, nn.Linear, Tensor, Tensor]:
    """A linear network whose labels have logits of 20 and more above the others: the gradient at them is 1e-9."""
    torch.manual_seed(0)
    x = torch.rand(6, 1, 4, 4)
    layer = nn.Linear(16, 5)
    with torch.no_grad():
        layer.bias[2] = 22.0
    return nn.Sequential(nn.Flatten(), layer), layer, x, torch.full((6,), 2)


def gradient_of(layer: nn.Linear) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad.clone()


def slopes(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with borrowed(network):
        return input_gradient(lambda point: cross_entropy(network(point), y), x)


def test_in_float16_the_sign_of_a_tiny_gradient_is_that_in_float32() -> None:
    network, _, x, y = confident()
    exact = slopes(network, x, y)
    assert 0 < float(exact.abs().max()) < 1e-8  # 6e-8 is the least number of float16
    with torch.autocast("cpu", torch.float16):
        assert not slopes(network, x, y).any()
    found = slopes(Accelerated(network, "fp16"), x, y)
    torch.testing.assert_close(found, exact, rtol=5e-3, atol=1e-12)


def test_each_image_has_its_own_factor_and_in_train_mode_the_batch_has_one() -> None:
    network, _, x, y = confident()
    wrong = y.clone()
    wrong[:3] = 0  # their gradients are a billion times larger
    exact = slopes(network, x, wrong)
    inside = Accelerated(network, "fp16")
    torch.testing.assert_close(slopes(inside, x, wrong), exact, rtol=5e-3, atol=1e-12)
    with borrowed(inside, training=True):
        together = input_gradient(lambda point: cross_entropy(inside(point), wrong), x)
    torch.testing.assert_close(together[:3], exact[:3], rtol=5e-3, atol=1e-12)
    assert (together[3:] == 0).float().mean() > 0.9  # too small next to the others


@half
@pytest.mark.parametrize("defense", [Standard(), PgdAt(steps=2), Trades(steps=2), Atent(steps=3, share=0.9)], ids=str)
def test_a_step_in_half_precision_is_near_that_in_float32(precision: Precision, defense: Defense) -> None:
    x, y = small_batch()
    losses, weights = [], []
    for mode in ("off", precision):
        network = small_network(dropout=0)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        scale = LossScale() if mode == "fp16" else None
        step = train_step(accelerated(network, mode), optimizer, defense, x, y, LINF, generator(), scale=scale)
        losses.append(step.loss)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
        assert weights[-1].dtype == torch.float32
    assert losses[1] != losses[0]
    near = 0.1 if isinstance(defense, Trades) else 0.02  # it starts where rounding hides the slope of the divergence
    assert losses[1] == pytest.approx(losses[0], rel=near)
    assert float((weights[1] - weights[0]).norm() / weights[0].norm()) < near


def test_the_scale_keeps_gradients_of_weights_from_becoming_zero() -> None:
    network, layer, x, y = confident()
    gradients = []
    for precision, scale in (("off", None), ("fp16", LossScale(1.0)), ("fp16", LossScale())):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        train_step(accelerated(network, precision), optimizer, Standard(), x, y, LINF, generator(), scale=scale)  # type: ignore[arg-type]
        gradients.append(gradient_of(layer))
    exact, unscaled, scaled = gradients
    assert not unscaled.any()
    torch.testing.assert_close(scaled, exact, rtol=0.3, atol=1e-11)


class Steep(nn.Module):
    """The gradient of its weight is a thousand times that of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(1000 * x.flatten(1), self.linear.weight) / 1000


def test_a_gradient_that_overflows_is_computed_again_with_half_the_scale() -> None:
    _, _, x, y = confident()
    torch.manual_seed(0)
    network, scale = Steep(), LossScale(2.0**24)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    train_step(Accelerated(network, "fp16"), optimizer, Standard(), x, y, LINF, generator(), scale=scale)
    assert 1 < scale.value < 2.0**24
    found = gradient_of(network.linear)
    train_step(network, optimizer, Standard(), x, y, LINF, generator())
    torch.testing.assert_close(found, gradient_of(network.linear), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("awp", [0.0, 0.005])
def test_a_gradient_that_overflows_leaves_batchnorm_as_one_pass_does(awp: float) -> None:
    _, _, x, y = confident()
    statistics = []
    for scale in (LossScale(256.0), LossScale(2.0**26)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        train_step(
            Accelerated(network, "fp16"), optimizer, PgdAt(steps=2), x, y, LINF, generator(), awp=awp, scale=scale
        )
        statistics.append([buffer.clone() for buffer in network.buffers()])
    assert scale.value < 2.0**26
    for one, other in zip(*statistics, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_a_loss_that_is_not_finite_is_refused_with_any_scale() -> None:
    network, layer, x, y = confident()
    torch.nn.init.constant_(layer.weight, float("nan"))
    scale = LossScale(8.0)
    with pytest.raises(NotFiniteError):
        train_step(
            Accelerated(network, "fp16"), torch.optim.SGD(network.parameters()), Standard(), x, y, LINF, generator(),
            scale=scale,
        )  # fmt: skip
    assert scale.value == 1


def test_the_scale_doubles_after_two_thousand_finite_gradients() -> None:
    scale = LossScale(4.0)
    for _ in range(2000):
        assert scale.value == 4
        scale.grow()
    assert (scale.value, scale.good) == (8, 0)


class Reads(TorchDispatchMode):
    """Counts numbers that are read one by one from a tensor: each would wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "defense", [Standard(), PgdAt(), Trades(), Mart(), Atent(share=0.5, tolerance=0.01)], ids=lambda d: type(d).__name__
)
def test_a_training_step_reads_once_from_the_device(defense: Defense, monkeypatch: pytest.MonkeyPatch) -> None:
    network, (x, y) = small_network(), small_batch()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    lists = 0
    tolist = Tensor.tolist

    def counted(tensor: Tensor) -> Any:
        nonlocal lists
        lists += 1
        return tolist(tensor)

    monkeypatch.setattr(Tensor, "tolist", counted)
    with Reads() as reads, known(x):
        train_step(network, optimizer, defense, x, y, LINF, generator())
    assert (reads.count, lists) == (0, 1)


def test_modes_are_switched_once_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (x, y) = small_network(), small_batch()
    switched: list[bool] = []
    train = nn.Module.train

    def switch(module: nn.Module, mode: bool = True) -> nn.Module:
        switched.append(mode)
        return train(module, mode)

    monkeypatch.setattr(nn.Sequential, "train", switch)
    train_step(network, torch.optim.SGD(network.parameters()), Atent(steps=7), x, y, LINF, generator())
    assert switched == [True, False]


def test_compiled_passes_are_those_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []

    def compile_eagerly(network: nn.Module) -> Any:
        compiled.append(network)
        return torch._dynamo.optimize("eager")(network)

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    network, (x, _) = small_network(dropout=0).eval(), small_batch()
    faster = accelerated(network, compiled=True)
    assert compiled == [network]
    assert sorted(name for name, _ in faster.named_parameters()) == [
        f"network.{name}" for name in sorted(dict(network.named_parameters()))
    ]
    torch.testing.assert_close(faster(x), network(x))


def test_nothing_asked_for_leaves_the_network_itself() -> None:
    network = small_network()
    assert accelerated(network) is network


class Tiny(nn.Sequential):
    """float16 is slow on a CPU."""

    def __init__(self) -> None:
        super().__init__(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 10))


def test_a_training_in_float16_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network, recipe = Tiny(), tiny(amp="fp16")
    whole = fit(recipe, tmp_path / "whole", model=deepcopy(network), how=QUIET)
    calls = 0

    def interrupted(*given: Any, **settings: Any) -> Step:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return train_step(*given, **settings)

    monkeypatch.setattr("atent.training.fit.train_step", interrupted)
    with pytest.raises(Interrupted):
        fit(recipe, tmp_path / "parts", model=deepcopy(network), how=replace(QUIET, checkpoint_batches=1))
    assert_same_run(whole, fit(recipe, tmp_path / "parts", model=deepcopy(network), how=QUIET))
    assert load_tensors(whole.last)[1]["scale"]["good"] > 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tiny(epochs=1), tmp_path_factory.mktemp("runs") / "tiny", how=QUIET).folder


@pytest.mark.parametrize("command", ["attack --examples 20 --set steps=2", "certify --sigma .5 --n 100 --examples 3"])
def test_rows_state_the_half_precision(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *given = command.split()
    for amp in ([], ["--amp", "bf16"]):
        assert atent(name, run, *given, *amp) == 0
        shown = capsys.readouterr()
        assert ("bf16" in shown.out) == bool(amp)
        assert ("device: cpu, bf16" in shown.err) == bool(amp)
    headers = [json.loads(file.read_text().splitlines()[0]) for file in (run / name).glob("*.jsonl")]
    assert sorted(header.get("amp", "") for header in headers) == ["", "bf16"]


def test_an_unknown_precision_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["train", "demo", "--out", tmp_path], ["attack", run], ["certify", run, "--sigma", 1]):
        assert atent(*command, "--amp", "fp8") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "fp8" in line
        assert "bf16" in line


OLD = {"architecture": "x86_64", "avx512_f": True}


@pytest.mark.parametrize(
    ("told", "amp", "warned"),
    [
        (OLD, "bf16", True),
        (OLD, "fp16", False),
        (OLD | {"avx512_bf16": True}, "bf16", False),
        (OLD | {"amx_bf16": True}, "bf16", False),
        ({"architecture": "aarch64"}, "bf16", False),  # not known what it has
    ],
)
def test_a_processor_that_emulates_bfloat16_is_warned_about(
    told: dict[str, object], amp: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    said: list[str] = []
    fit(tiny(amp=amp, epochs=1), tmp_path, model=Tiny(), how=replace(QUIET, say=said.append))
    assert any("no bfloat16 instructions; --amp off is faster here" in line for line in said) == warned
