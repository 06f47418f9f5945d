"""Train in one call: tensors or a Dataset, a network in hand or by name, resumed bit for bit; and open a run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import atent
from atent.data.dataset import load as load_images
from atent.errors import UserError
from atent.evaluation import trained as trained_module
from atent.evaluation.target import open_target
from atent.network import predict
from atent.storage.run import Run
from atent.training.train import _training
from short_runs import QUIET, assert_same_run, tiny
from test_cli import atent as command
from test_trust import table, written

SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 50, "defense.steps": 2, "monitor_examples": 20, "monitor.steps": 2}
COUNT = 200


def digits(count: int = COUNT) -> tuple[Tensor, Tensor]:
    return load_images("mnist-small", "train").batch(slice(count))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def train(model: nn.Module | str, x: Any, y: Any, out: Path, **options: Any) -> atent.Training:
    how = options.pop("how", QUIET)
    settings = {**SETTINGS, **options.pop("settings", {})}
    return atent.train(model, x, y, "linf:0.1", out=out, settings=settings, how=how, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[atent.Training, nn.Module]:
    model = network()
    return train(model, *digits(), tmp_path_factory.mktemp("finished") / "run"), model


def test_a_network_in_hand_is_trained_itself(finished: tuple[atent.Training, nn.Module]) -> None:
    result, model = finished
    assert result.network is model
    assert not model.training
    assert not torch.equal(model[1].weight, network()[1].weight)  # type: ignore[index]
    best = result.history[result.epoch - 1]
    assert best["best"]
    assert (result.clean, result.robust) == (best["clean"], best["robust"])
    words = f"{100 * best['robust']:.1f} % robust ["
    assert repr(result).startswith(f"atent, linf:0.1, epoch {result.epoch} of 2, 20 held-out images: {words}")
    assert repr(result).endswith(f"% clean; {result.folder}")
    assert result._repr_html_().count("<tr>") == 3
    assert result.warnings == ()


def test_training_on_tensors_learns(tmp_path: Path) -> None:
    """Plain training on 1,500 digits: far better than the 10 % of chance on images that it has not seen."""
    x, y = digits(1500)
    settings = {"defense": "standard", "epochs": 3, "optimizer.lr": 0.01, "monitor_examples": 5}
    result = atent.train(network(), x, y, "linf:0.1", out=tmp_path, settings=settings, how=QUIET)
    test, labels = load_images("mnist-small", "test").batch(slice(500))
    assert float((predict(result.network, test) == labels).float().mean()) > 0.6


@pytest.mark.parametrize("form", ["Dataset", "DataLoader", "bytes"])
def test_every_form_of_images_trains_alike(
    form: str, finished: tuple[atent.Training, nn.Module], tmp_path: Path
) -> None:
    x, y = digits()
    given = {
        "Dataset": (TensorDataset(x, y), None),
        "DataLoader": (DataLoader(TensorDataset(x, y), batch_size=30), None),
        "bytes": ((255 * x).round().byte(), y.int()),
    }
    result = train(network(), *given[form], tmp_path)
    ours, expected = result.network.state_dict(), finished[0].network.state_dict()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    pass


def stop(line: str) -> None:
    if line.startswith("epoch 1/2"):
        raise Stopped


def test_a_training_that_was_stopped_resumes_bit_for_bit(
    finished: tuple[atent.Training, nn.Module], tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        train(network(), *digits(), tmp_path, how=replace(QUIET, say=stop, checkpoint_batches=3))
    assert not Run(tmp_path).history()
    result = train(network(), *digits(), tmp_path)
    assert_same_run(Run(tmp_path), Run(finished[0].folder))
    assert all(map(torch.equal, result.network.state_dict().values(), finished[0].network.state_dict().values()))


def test_other_images_do_not_resume_a_run(finished: tuple[atent.Training, nn.Module]) -> None:
    x, y = digits()
    with pytest.raises(UserError, match=r"the images are not those that .* was trained on"):
        train(network(), x.flip(3), y, finished[0].folder)


def test_a_network_by_name_is_standardized_and_loaded(tmp_path: Path) -> None:
    """The recipe's standardization is inside; without the data, the shape comes from the run."""
    result = train("small-cnn", *digits(60), tmp_path, settings={"epochs": 1})
    again = atent.load(tmp_path)
    assert not again.training
    x, _ = digits(5)
    assert torch.equal(again(x), result.network(x))
    mean = again.standardize.mean.item()  # type: ignore[union-attr,operator]
    assert mean == pytest.approx(digits(60)[0].mean().item(), abs=0.02)


def test_a_trained_object_is_loaded_into_an_object(finished: tuple[atent.Training, nn.Module]) -> None:
    result, model = finished
    x, _ = digits(5)
    other = atent.load(result.folder, model=network())
    assert other is not model
    assert torch.equal(other(x), model(x))
    with pytest.raises(UserError, match=r"Python object.*in Python model=network"):
        atent.load(result.folder)


def test_an_attack_on_such_a_run_asks_for_its_data(
    finished: tuple[atent.Training, nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("attack", str(finished[0].folder), "--model", "small-cnn") == 2
    assert "the images were tensors (given in Python)" in capsys.readouterr().err


def test_load_gives_the_network_that_open_target_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(Path(written("run", table())))
    target = open_target(run.folder, examples=5)
    monkeypatch.setattr(trained_module, "open_data", lambda *_, **__: pytest.fail("the data are read"))
    x, _ = target.images.batch(slice(5))
    for place in (run.folder, run.best):
        network = atent.load(place)
        assert not network.training
        assert torch.equal(network(x), target.network(x))


def test_load_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights at"):
        atent.load(tmp_path)
    torch.save(network().state_dict(), tmp_path / "theirs.pt")
    with pytest.raises(UserError, match=r"no run or checkpoint of atent; atent\.open_target"):
        atent.load(tmp_path / "theirs.pt")


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inside(x))


def test_a_network_with_logits_in_its_output_is_trained(
    finished: tuple[atent.Training, nn.Module], tmp_path: Path
) -> None:
    """The same network inside has the same weights afterwards; the wrapping one still returns its object."""
    torch.manual_seed(0)
    result = train(Wrapped(), *digits(), tmp_path)
    plain = finished[0].network.state_dict()
    for name, tensor in result.network.state_dict().items():
        assert torch.equal(tensor, plain[name.removeprefix("inside.")]), name
    assert isinstance(result.network(digits(2)[0]), SimpleNamespace)
    target = open_target(tmp_path, model=Wrapped(), data="mnist-small", examples=2)
    assert isinstance(target.network(digits(2)[0]), Tensor)  # what attacks need


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((digits(4)[0] * 255, digits(4)[1]), {}, "divide them by 255"),
        ((digits(4)[0], digits(4)[1] + 9), {}, "for a network of 10 classes; allowed: 0 to 9"),
        ((digits(4)[0], "linf:0.1"), {}, "given as threat='linf:0.1'"),
        (("mnist-small", digits(4)[1]), {}, "which has the labels"),
        (digits(4), {"recipe": "own-image"}, "unknown recipe 'own-image'"),
        (digits(4), {"settings": {"defence": "trades"}}, "unknown recipe key 'defence'"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: Any, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as told:
        atent.train(network(), *arguments, out=tmp_path / "run", **options)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("held", [True, False])
def test_signs_of_a_failed_training_are_warnings(held: bool, finished: tuple[atent.Training, nn.Module]) -> None:
    rows = [dict(row) for row in finished[0].history]
    rows[1] |= {"masked": True, "plateau": True}
    if not held:
        rows = [
            {key: value for key, value in row.items() if key not in ("clean", "robust", "examples")} for row in rows
        ]
    run = SimpleNamespace(folder=Path("runs/mine"), history=lambda: rows)
    result = _training(run, tiny(), nn.Identity())  # type: ignore[arg-type]
    assert [words.partition(":")[0] for words in result.warnings] == ["epoch 2", "epoch 2"]
    assert "masked gradients" in result._repr_html_()
    assert ("no held-out images; runs/mine" in repr(result)) is not held
