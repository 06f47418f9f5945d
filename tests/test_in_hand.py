"""Evaluate in one call, on a linear network whose worst case is known exactly."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import atent
from atent.errors import UserError
from atent.evaluation import attack as attack_module
from atent.report.tables import results
from atent.storage.certificates import certified
from test_cli import atent as command
from toys import generator, two_class_linear

EPS, SIGMA = 0.05, 0.25
WEIGHTS = torch.linspace(-1, 1, 6)
THREAT = f"linf:{EPS}"


def network(idle: int = 2) -> nn.Sequential:
    return two_class_linear(WEIGHTS, bias=-0.01, idle=idle)


def batch(count: int = 60) -> tuple[Tensor, Tensor]:
    """Images away from the edges of the pixel box; one label in ten is wrong."""
    x = 0.3 + 0.4 * torch.rand(count, 1, 3, 2, generator=generator(3))
    right = (height(x) > 0).long()
    return x, torch.where(torch.arange(count) % 10 == 0, 1 - right, right)


def height(x: Tensor) -> Tensor:
    return x.flatten(1) @ WEIGHTS - 0.01


def exact(x: Tensor, y: Tensor) -> tuple[float, float]:
    """The clean accuracy and the one in the worst case: the ball lowers the margin by eps times the dual norm."""
    margin = torch.where(y == 1, height(x), -height(x))
    return float((margin > 0).float().mean()), float((margin > EPS * WEIGHTS.abs().sum()).float().mean())


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*batch(), strict=True))


class Named(TensorDataset):
    """As torchvision's: with the names of its classes."""

    classes = ("no", "yes", "never", "<b>nor this</b>")


class Listed(Dataset[Any]):
    """Whatever it is made of."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, k: int) -> Any:
        return self.items[k]


def saved(folder: Path) -> str:
    """An .npz file whose test images are the batch."""
    x, y = batch()
    names = np.array(["no", "yes", "never", "nor this"])
    filled = torch.arange(len(y)) % 4  # each class has a training image
    np.savez(folder / "own.npz", x=x, y=filled, x_test=x, y_test=y, classes=names)
    return str(folder / "own.npz")


FORMS: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "tensors": lambda _: batch(),
    "arrays": lambda _: tuple(tensor.numpy() for tensor in batch()),
    "double, int32": lambda _: (batch()[0].double(), batch()[1].int()),
    "Dataset": lambda _: (TensorDataset(*batch()),),
    "named": lambda _: (Named(*batch()),),
    "Subset": lambda _: (Subset(Named(*batch()), range(60)),),
    "IterableDataset": lambda _: (Streamed(),),
    "DataLoader": lambda _: (DataLoader(TensorDataset(*batch()), batch_size=7),),
    "file": lambda folder: (saved(folder),),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_images_gives_the_exact_worst_case(form: str, tmp_path: Path) -> None:
    x, y = (*FORMS[form](tmp_path), None)[:2]
    result = atent.evaluate(network(), x, y, THREAT, checks=False)
    assert (result.clean, result.robust) == pytest.approx(exact(*batch()))
    assert result.images == 60
    rows = next(iter(result.rows.values()))
    assert sorted(row["label"] for row in rows) == sorted(batch()[1].tolist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_scripted_network_is_evaluated_as_any_other() -> None:
    scripted = torch.jit.script(network())
    result = atent.evaluate(scripted, *batch(20), THREAT, checks=False)
    assert (result.clean, result.robust) == pytest.approx(exact(*batch(20)))
    assert result.passes.backward > 0
    assert atent.certify(scripted, *batch(3), sigma=SIGMA, n=200).images == 3


def test_bytes_are_pixels() -> None:
    x, y = batch()
    bytes_ = (255 * x).round().byte()
    result = atent.evaluate(network(), bytes_, y, THREAT, checks=False)
    assert (result.clean, result.robust) == pytest.approx(exact(bytes_.float() / 255, y))


def test_a_result_has_what_it_promises() -> None:
    model = network()
    before = [parameter.clone() for parameter in model.parameters()]
    result = atent.evaluate(model, *batch(), THREAT)
    clean, robust = exact(*batch())
    for share, interval in ((result.clean, result.clean_interval), (result.robust, result.robust_interval)):
        expected = binomtest(round(share * 60), 60).proportion_ci(method="wilson")
        assert interval == pytest.approx((expected.low, expected.high))
    low, high = (f"{100 * end:.1f}" for end in result.robust_interval)
    words = f"{100 * robust:.1f} % robust [{low}, {high}], {100 * clean:.1f} % clean; checks: silent"
    assert repr(result) == f"quick, linf:0.05, 60 test images: {words}"
    assert result.warnings == ()
    assert result.passes.forward >= result.passes.backward > 60
    assert all(len(rows) == 60 for rows in result.rows.values())
    with pytest.raises(AttributeError):
        result.robust = 1.0  # type: ignore[misc]
    assert model.training  # as it was
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model._forward_hooks


def test_a_threat_is_shown_as_it_was_given() -> None:
    x, y = batch(20)
    assert "quick, linf:8/255, 20 test" in repr(atent.evaluate(network(), x, y, "linf:8/255", checks=False))
    assert "quick, l2:0.5, 20 test" in repr(atent.evaluate(network(), x, y, atent.Threat("l2", 0.5), checks=False))


class Escaping:
    """An attack that does nothing, with a name that is markup."""

    title = "<script>alert(1)</script>"

    def __call__(self, model: Any, x: Tensor, y: Any, threat: Any, generator: Any) -> Tensor:  # noqa: ARG002
        return x


def test_html_is_a_small_escaped_table() -> None:
    result = atent.evaluate(network(), *batch(20), THREAT, attack=Escaping(), checks=False)
    page = result._repr_html_()
    assert page.startswith("<table>")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>" not in page
    assert f"<td>{round(20 * result.clean)}</td>" in page


@pytest.mark.parametrize(("attack", "title"), [(atent.Pgd(steps=3), "PGD-3"), ("fgsm", "FGSM")])
def test_one_attack_instead_of_a_suite(attack: Any, title: str) -> None:
    result = atent.evaluate(network(), *batch(20), THREAT, attack=attack, checks=False)
    assert result.name == title
    assert result.robust == pytest.approx(exact(*batch(20))[1])


def test_saved_rows_are_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = atent.evaluate(network(), *batch(), THREAT, checks=False)
    certificates = atent.certify(network(), *batch(20), sigma=SIGMA, radii=[0.1], n=200)
    assert certificates.save(result.save(tmp_path / "run")) == tmp_path / "run"
    lines = results(tmp_path / "run")
    assert [line.attack for line in lines] == [*result.rows, "worst case"]
    assert lines[-1].robust.value == result.robust
    (found,) = certified(tmp_path / "run")
    assert found.accuracy(0.1) == certificates.certified[0.1]
    capsys.readouterr()
    assert command("show", str(tmp_path / "run")) == 0
    printed = capsys.readouterr().out
    assert f"{100 * result.robust:.2f}" in printed
    assert "sigma 0.25" in printed


def test_rows_in_a_folder_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = atent.evaluate(network(), *batch(), THREAT, checks=False, out=tmp_path)
    monkeypatch.setattr(attack_module, "attack_batch", lambda *_, **__: pytest.fail("attacked again"))
    assert atent.evaluate(network(), *batch(), THREAT, checks=False, out=tmp_path) == first
    with pytest.raises(BaseException, match="attacked again"):  # other images, the same number of them
        atent.evaluate(network(), batch()[0].flip(0), batch()[1].flip(0), THREAT, checks=False, out=tmp_path)


class Mirrored(nn.Module):
    """A network whose weights and class name do not tell what it does."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.inside, self.sign = network(), sign

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inside(x)
        return self.sign * logits


@pytest.mark.parametrize("options", [{}, {"within": 20.0}])
def test_rows_of_another_network_with_the_same_weights_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    call = functools.partial(atent.evaluate, x=batch()[0], y=batch()[1], threat=THREAT, checks=False, out=tmp_path)
    call(Mirrored(1.0), **options)
    with pytest.raises(UserError, match="rows of another network with the same weights"):
        call(Mirrored(-1.0), **options)


def test_a_file_is_no_folder_for_rows(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for write in (
        lambda: atent.evaluate(network(), *batch(), THREAT, checks=False, out=file),
        lambda: atent.evaluate(network(), *batch(), THREAT, checks=False).save(file),
    ):
        with pytest.raises(UserError, match="file is a file; allowed: a folder"):
            write()


@pytest.mark.parametrize("out", [False, True])
def test_within_gives_an_interval_around_the_exact_worst_case(out: bool, tmp_path: Path) -> None:
    x, y = batch(200)
    where = tmp_path if out else None
    result = atent.evaluate(network(), x, y, THREAT, attack=atent.Pgd(steps=3), within=10, checks=False, out=where)
    low, high = result.robust_interval
    assert low <= exact(x, y)[1] <= high
    assert high - low <= 0.2
    assert result.clean == pytest.approx(exact(x, y)[0])
    assert result.sampled
    assert f", 200 test images, a sample of {result.sampled}: " in repr(result)
    assert {Path(name).parent.name for name in result.files} == {"attack", "sample"}


def test_a_sample_in_batches_of_another_size_is_another_result(tmp_path: Path) -> None:
    """A folder with two samples: the passes and the files of a result are those of its own sample."""
    options: dict[str, Any] = {"attack": atent.Pgd(steps=3), "within": 10, "checks": False}
    alone = atent.evaluate(network(), *batch(), THREAT, batch=7, **options)
    atent.evaluate(network(), *batch(), THREAT, **options, out=tmp_path)
    second = atent.evaluate(network(), *batch(), THREAT, batch=7, **options, out=tmp_path)
    assert second.passes[:2] == alone.passes[:2]
    assert list(second.files) == list(alone.files)


class Doing:
    """An attack whose settings are not fields of a dataclass."""

    def __init__(self, steps: int) -> None:
        self.attack = atent.Pgd(steps=steps)

    def __call__(self, *arguments: Any) -> Tensor:
        return self.attack(*arguments)


def doing(*arguments: Any) -> Tensor:
    return Doing(3)(*arguments)


@pytest.mark.parametrize("attack", [Doing(3), doing])
def test_rows_of_an_attack_without_known_fields_are_not_kept_in_a_folder(attack: Any, tmp_path: Path) -> None:
    """Otherwise `Doing(50)` would get the rows of `Doing(3)`."""
    found = atent.evaluate(network(), *batch(20), THREAT, attack=attack, checks=False)
    assert found.name == f"{__name__}:{getattr(attack, '__name__', 'Doing')}"
    assert found.robust == pytest.approx(exact(*batch(20))[1])
    with pytest.raises(UserError, match=r"oing with out=.*allowed with out: a dataclass"):
        atent.evaluate(network(), *batch(20), THREAT, attack=attack, checks=False, out=tmp_path)


def test_reversed_arrays_are_images_and_labels() -> None:
    x, y = (tensor.numpy()[::-1] for tensor in batch(20))
    assert atent.evaluate(network(), x, y, THREAT, checks=False).robust == pytest.approx(exact(*batch(20))[1])


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: Tensor) -> Tensor:
        shares: Tensor = self.inside(x).softmax(1)
        return shares


def test_the_checks_are_run_unless_they_are_not_wanted() -> None:
    found = atent.evaluate(Probabilities(), *batch(20), THREAT)
    assert found.warnings is not None
    assert "the outputs are probabilities" in found.warnings[0]
    assert repr(found).endswith("warning" if len(found.warnings) == 1 else "warnings")
    assert "the outputs are probabilities" in found._repr_html_()
    skipped = atent.evaluate(Probabilities(), *batch(20), THREAT, checks=False)
    assert skipped.warnings is None
    assert repr(skipped).endswith("checks: not run")


X, Y = batch(4)
MISTAKES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "bytes as floats": ((255 * X, Y, THREAT), {}, "divide them by 255"),
    "standardized": ((3 * X - 2, Y, THREAT), {}, "standardize inside the model"),
    "NaN": ((X * float("nan"), Y, THREAT), {}, "NaN"),
    "whole numbers": ((X.long(), Y, THREAT), {}, r"images of torch.int64; allowed: floating-point pixels in \[0, 1\]"),
    "flat": ((X.flatten(1), Y, THREAT), {}, r"images of shape \(4, 6\); allowed: \(n, channels, height, width\)"),
    "none": ((X[:0], Y[:0], THREAT), {}, "shape"),
    "no bytes": ((X[:0].byte(), Y[:0], THREAT), {}, "one image or more"),
    "no labels": ((X,), {"threat": THREAT}, "y must be given"),
    "fewer labels": ((X, Y[:3], THREAT), {}, r"labels of shape \(3,\) for 4 images; allowed: \(4,\)"),
    "labels as floats": ((X, Y.float(), THREAT), {}, "labels of torch.float32; allowed: whole numbers"),
    "negative label": ((X, Y - 1, THREAT), {}, "the labels go from -1"),
    "label too large": ((X, Y + 4, THREAT), {}, "for a network of 4 classes; allowed: 0 to 3"),
    "threat as labels": ((TensorDataset(X, Y), THREAT), {}, "y = 'linf:0.05'; a threat must be given"),
    "labels as text": ((X, "cats", THREAT), {}, "the labels are a str: 'cats'"),
    "no threat": ((X, Y), {}, "threat='linf:8/255'"),
    "labels twice": ((TensorDataset(X, Y), Y, THREAT), {}, "leave y out"),
    "labels of a file": (("mnist-small", Y, THREAT), {}, "next to 'mnist-small', which has the labels"),
    "other images": ((torch.rand(4, 3, 8, 8), Y, THREAT), {}, r"does not take images of shape \(3, 8, 8\)"),
    "pairs of what": ((Listed({"image": 1}),), {"threat": THREAT}, "the Listed gives a dict; allowed: pairs"),
    "pictures": (
        (Listed((SimpleNamespace(getbands=1), 0)),),
        {"threat": THREAT},
        "images of type SimpleNamespace; .*ToTensor",
    ),
    "sizes": ((Listed((X[0], 0), (torch.rand(1, 3, 3), 0)),), {"threat": THREAT}, "images of different shapes"),
    "empty": ((Listed(),), {"threat": THREAT}, "the Listed is empty"),
    "nothing": ((7,), {"threat": THREAT}, "the images are a int; allowed: a tensor, a Dataset"),
    "unknown data": (("mnisst",), {"threat": THREAT}, "unknown data set 'mnisst'"),
    "unknown suite": ((X, Y, THREAT), {"suite": "huge"}, "unknown suite 'huge'"),
    "two attacks": ((X, Y, THREAT), {"suite": "quick", "attack": "pgd"}, "allowed: one of them"),
    "a class": ((X, Y, THREAT), {"attack": atent.Pgd}, "an object such as"),
    "labels as names": ((X, ["a", "b", "a", "b"], THREAT), {}, "the labels are no numbers: .*allowed: numbers"),
    "names in pairs": ((Listed((X[0], "cat")),), {"threat": THREAT}, "the labels are no numbers: 'cat'"),
    "objects": ((np.array([None]), Y, THREAT), {}, "the images are no numbers"),
    "another box": ((X, Y, atent.Threat("linf", EPS, (-1, 1))), {}, r"box \(-1, 1\); allowed: \(0, 1\)"),
    "no batch": ((X, Y, THREAT), {"batch": 0}, "batch 0; allowed: a whole number >= 1"),
    "negative batch": ((X, Y, THREAT), {"batch": -1}, "batch -1; allowed"),
    "too many": ((X, Y, THREAT), {"examples": 5}, "examples 5; allowed: 1 to 4"),
    "a part of a sample": ((X, Y, THREAT), {"examples": 2, "within": 1}, "--examples with --within"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_one_line(mistake: str) -> None:
    arguments, options, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words) as told:
        atent.evaluate(network(), *arguments, **options)
    assert "\n" not in str(told.value)


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(UserError, match="the model is a function; allowed"):
        atent.evaluate(lambda x: x, X, Y, THREAT)  # type: ignore[arg-type]


class Wrapped(nn.Module):
    """As the networks of transformers: an object with the field `logits`."""

    def __init__(self, inside: nn.Module | None = None) -> None:
        super().__init__()
        self.inside = inside or network()

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inside(x), hidden=None)


def test_the_logits_of_an_output_are_used_and_the_network_is_left_as_it_was() -> None:
    model = Wrapped()
    plain, wrapped = (atent.evaluate(one, *batch(), THREAT, checks=False) for one in (network(), model))
    assert dict(wrapped.rows) == dict(plain.rows)
    assert wrapped.passes[:2] == plain.passes[:2]  # counted as those of any network
    proven = [atent.certify(one, *batch(20), sigma=SIGMA, radii=[0.1], n=200) for one in (network(), model)]
    assert proven[0].rows == proven[1].rows
    assert isinstance(model(X), SimpleNamespace)
    with atent.logits_only(model):
        x_adv = atent.Pgd(steps=2)(model, X, Y, THREAT, generator())
    assert torch.equal(x_adv, atent.Pgd(steps=2)(network(), X, Y, THREAT, generator()))
    assert isinstance(model(X), SimpleNamespace)


def test_the_old_modules_do_not_hide_the_functions() -> None:
    """`atent.evaluate` and `atent.train` were modules in 0.1, and can still be imported."""
    import importlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("atent.evaluate")
    assert atent.evaluate(network(), X, Y, THREAT, checks=False).images == 4
