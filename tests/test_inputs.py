"""What methods are handed in Python: wrong images, labels and threats get one sentence, right ones cost nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atent.ascent import ascend
from atent.attacks import ATTACKS, AtentChain, CwL2, DeepFool, Pgd
from atent.data.images import Images
from atent.defenses import DEFENSES, PgdAt, worst_point
from atent.errors import UserError
from atent.evaluation import checks
from atent.evaluation.attack import attack_images
from atent.evaluation.suites import suite_attacks
from atent.inputs import checked
from atent.threat import Threat
from atent.training.step import train_step
from test_attacks import ONLY, attackable, quick
from toys import generator, linear, small_batch, small_network

Batch = tuple[Any, Any, Any]
METHODS = [*(f"attack {name}" for name in ATTACKS), *(f"defense {name}" for name in DEFENSES)]
methods = pytest.mark.parametrize("method", METHODS)


def run(method: str, model: Any, x: Any, y: Any, threat: Any) -> list[Tensor]:
    """Call an attack or a defense of ours to its end; what it returned."""
    kind, name = method.split()
    if kind == "attack":
        return [quick(name)(attackable(name, model), x, y, threat, generator())]
    torch.manual_seed(0)  # of dropout
    return [part for term in DEFENSES[name]()(model, x, y, threat, generator()) for part in term]


def text_for(method: str) -> str:
    return "l2:0.5" if ONLY.get(method.split()[1]) == "l2" else "linf:0.1"


def replaced(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[3, 0, 2, 2] = value
    return x


WRONG: dict[str, tuple[Callable[[Tensor, Tensor, str], Batch], str]] = {
    "standardized images": (
        lambda x, y, t: ((x - 0.5) / 0.5, y, t),
        r"from -\S+ to \S+; allowed: .*\[0, 1\].*Standardize",
    ),
    "images up to 255": (lambda x, y, t: (x * 255, y, t), r"to 25\S+; allowed: pixels in \[0, 1\]; divide them by 255"),
    "one pixel too bright": (lambda x, y, t: (replaced(x, 1.01), y, t), r"to 1\.01; allowed"),
    "images of bytes": (lambda x, y, t: ((x * 255).byte(), y, t), r"torch\.uint8; allowed: .* / 255"),
    "images of whole numbers": (lambda x, y, t: (x.long(), y, t), r"torch\.int64; allowed: floating-point"),
    "NaN": (lambda x, y, t: (replaced(x, float("nan")), y, t), "NaN or infinite"),
    "an infinite pixel": (lambda x, y, t: (replaced(x, float("inf")), y, t), "NaN or infinite"),
    "an array": (lambda x, y, t: (x.numpy(), y, t), "images are a ndarray; allowed: a torch.Tensor"),
    "an image without a batch": (lambda x, y, t: (x[0], y[0], t), r"labels of shape \(\) .*x\[None\]"),
    "one dimension": (lambda x, y, t: (x.flatten(), y, t), r"images of shape \(288,\); allowed: \(n, channels"),
    "no channels": (lambda x, y, t: (x[:, 0], y, t), r"does not take images of shape \(8, 6, 6\): .*channels"),
    "another size": (lambda x, y, t: (x[..., :5], y, t), r"does not take images of shape \(8, 1, 6, 5\): "),
    "an empty batch": (lambda x, y, t: (x[:0], y[:0], t), r"shape \(0, 1, 6, 6\); allowed: a batch of one"),
    "labels as numbers with a point": (lambda x, y, t: (x, y.float(), t), r"labels of torch\.float32; .*y\.long"),
    "short labels": (lambda x, y, t: (x, y.int(), t), r"labels of torch\.int32; .*y\.long"),
    "one-hot labels": (lambda x, y, t: (x, nn.functional.one_hot(y, 3), t), r"labels of shape \(8, 3\)"),
    "a column of labels": (lambda x, y, t: (x, y[:, None], t), r"labels of shape \(8, 1\) .*allowed: \(8,\)"),
    "a label too few": (lambda x, y, t: (x, y[:-1], t), r"labels of shape \(7,\) .*allowed: \(8,\)"),
    "a list of labels": (lambda x, y, t: (x, y.tolist(), t), "labels are a list"),
    "labels elsewhere": (lambda x, y, t: (x, y.to("meta"), t), "labels on meta, images on cpu"),
    "labels below 0": (lambda x, y, t: (x, y - 1, t), "labels go from -1 to"),
    "labels from 1 on": (lambda x, y, t: (x, y + 1, t), "label 3 for a network of 3 classes; allowed: 0 to 2"),
    "a number for a threat": (lambda x, y, _: (x, y, 0.3), "threat 0.3; allowed: a Threat, or text"),
    "no threat": (lambda x, y, _: (x, y, None), "threat None; allowed: a Threat, or text"),
    "a pair for a threat": (lambda x, y, _: (x, y, ("linf", 0.3)), "allowed: a Threat, or text"),
    "an unknown norm": (lambda x, y, _: (x, y, "l1:0.3"), "norm 'l1'; allowed: linf, l2"),
    "no radius": (lambda x, y, _: (x, y, "linf"), "threat 'linf'; allowed: NORM:EPS"),
    "a negative radius": (lambda x, y, _: (x, y, "linf:-1"), "eps -1.0; allowed"),
}


@methods
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_gets_one_sentence(method: str, wrong: str) -> None:
    change, sentence = WRONG[wrong]
    model, (x, y) = small_network(), small_batch()
    assert {int(y.min()), int(y.max())} == {0, 2}
    with pytest.raises(UserError, match=sentence) as caught:
        run(method, model, *change(x, y, text_for(method)))
    assert "\n" not in str(caught.value)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@methods
def test_text_for_a_threat_is_as_good_as_the_threat(method: str) -> None:
    text = text_for(method)
    threat = Threat("l2", 0.5) if text == "l2:0.5" else Threat("linf", 0.1)
    ours, theirs = (run(method, small_network(dropout=0), *small_batch(), given) for given in (text, threat))
    assert ours
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_text_for_a_threat_is_taken_by_functions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "QUERIES", 3)

    def found(given: Threat | str) -> list[object]:
        model, (x, y) = small_network(dropout=0), small_batch()
        images, optimizer = Images(x, y, ("a", "b", "c")), torch.optim.SGD(model.parameters(), 0.1)
        return [
            list(attack_images(model, images, Pgd(steps=2), given)),
            train_step(model, optimizer, PgdAt(steps=2), x, y, given, generator()),
            checks.check_network(model, images, given),
            suite_attacks("paper", given),
        ]

    assert found("linf:8/255") == found(Threat("linf", 8 / 255))


@pytest.mark.parametrize("name", ["ascend", "worst_point"])
def test_a_users_own_search_is_checked_too(name: str) -> None:
    """Clamping alone would move these pixels by a thousand radii."""
    model, (x, y) = small_network().eval(), small_batch()

    def search(x: Tensor, threat: Threat | str) -> Tensor:
        if name == "worst_point":
            return worst_point(model, x, y, threat, generator(), steps=2)
        *_, point = ascend(lambda point: model(point).sum(1), x, threat, steps=2, generator=generator())
        return point

    outside = (x - 0.5) / 0.5
    for wrong in (outside, x * 255, replaced(x, float("nan")), x[:0], x.byte()):
        with pytest.raises(UserError, match="allowed"):
            search(wrong, "linf:0.001")
    assert float((search(x, "linf:0.001") - x).abs().max()) <= 0.001 + 1e-6
    free = Threat("linf", 0.001).unboxed()
    assert float((search(outside, free) - outside).abs().max()) <= 0.001 + 1e-6
    wide = Threat("linf", 0.001, (-1.0, 1.0))
    assert float((search(outside, wide) - outside).abs().max()) <= 0.001 + 1e-6


def test_rounding_is_no_mistake() -> None:
    x, y = small_batch()
    x = replaced(x, 1 + 2e-7)
    assert float(x.max()) > 1
    run("attack pgd", small_network(), x, y, "linf:0.1")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("place", [0, 17, -1])
def test_a_pixel_outside_is_found_wherever_it_lies(layout: torch.memory_format, place: int) -> None:
    x = torch.rand(4, 3, 5, 7, generator=generator())
    x.view(-1)[place] = -0.2
    x = x.to(memory_format=layout)
    for images in (x, x.flip(0), x.transpose(2, 3), x.double(), x.bfloat16()):
        with pytest.raises(UserError, match=r"from -0\.2"):
            list(ascend(lambda point: point.flatten(1).sum(1), images, "linf:0.1", steps=1, generator=generator()))


@pytest.mark.parametrize("name", ["tolist", "item", "__bool__", "__float__", "__int__"])
def test_a_check_reads_from_the_device_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    original = getattr(Tensor, name)

    def counted(self: Tensor) -> Any:
        reads.append(name)
        return original(self)

    model, (x, y) = small_network().eval(), small_batch()
    monkeypatch.setattr(Tensor, name, counted)
    with checked(model, x, y, "linf:0.1"):
        model(x)
    assert len(reads) == (name == "tolist")


def test_a_call_that_failed_leaves_nothing_behind() -> None:
    """Its labels must not be compared with what the network says later."""
    model, (x, y) = small_network(), small_batch()
    with pytest.raises(UserError, match="cw-l2"):
        CwL2()(model, x, y + 1, "linf:0.1", generator())
    with pytest.raises(UserError, match="pull 'auto'"):
        AtentChain(pull="auto", reach=0.1)(model, x, model.eval()(x).argmax(1), "linf:0.1", generator())
    terms = PgdAt()(model, x, y, "linf:0.1", generator())
    next(terms)
    del terms
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    model(x)


def test_an_error_elsewhere_is_not_blamed_on_the_images() -> None:
    model, (x, y) = small_network(), small_batch()

    class Broken(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("no memory left")

    with pytest.raises(torch.OutOfMemoryError):
        Pgd()(Broken(), x, y, "linf:0.1", generator())

    def fail() -> Iterator[None]:
        with checked(model, x, y, "linf:0.1"):
            yield
            raise RuntimeError("after the pass")

    work = fail()
    next(work)
    with pytest.raises(RuntimeError, match="after the pass"):
        next(work)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_network_takes_no_hooks_and_is_attacked_all_the_same() -> None:
    plain, (x, y) = linear(torch.randn(3, 36, generator=generator())), small_batch()
    scripted = torch.jit.script(plain)
    for attack in (Pgd(steps=3), DeepFool(steps=3)):
        ours, theirs = (attack(model, x, y, "linf:0.1", generator()) for model in (scripted, plain))
        torch.testing.assert_close(ours, theirs)


def test_a_function_is_no_network() -> None:
    x, y = small_batch()
    with pytest.raises(UserError, match=r"the model is a function; allowed: a torch\.nn\.Module"):
        run("defense standard", lambda x: x.flatten(1)[:, :3], x, y, "linf:0.1")


def test_numpy_radii_are_numbers_and_text_is_not() -> None:
    assert Threat("linf", float(np.float32(0.25))) == Threat("linf", np.float32(0.25))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="eps '8/255'; allowed: a finite number"):
        Threat("linf", "8/255")  # type: ignore[arg-type]


def test_wrong_labels_are_not_counted_as_broken_images() -> None:
    """A user's attack need not look at them, so the evaluation does."""
    model, (x, y) = small_network(), small_batch()
    images = Images(x, y + 7, tuple("abcdefghij"))
    with pytest.warns(DeprecationWarning, match="jit"):
        traced = torch.jit.trace(model.eval(), x)
    for call in (
        lambda: list(attack_images(model, images, lambda _, x, *__: x, "linf:0.1")),
        lambda: checks.check_network(model, images, "linf:0.1"),
        lambda: Pgd(steps=1)(traced, x, y + 7, "linf:0.1", generator()),
    ):
        with pytest.raises(UserError, match="for a network of 3 classes"):
            call()
