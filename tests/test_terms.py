"""Methods that users write: what a defense may hand back, and the search that it calls."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import atent
from atent.attacks import Pgd
from atent.defenses import Defense, PgdAt, Term, worst_point
from atent.defenses.cost import passes_per_image
from atent.errors import UserError
from atent.losses import cross_entropy, divergence
from atent.threat import Threat
from atent.training.step import train_step
from toys import THREATS, dual_norm, generator, small_batch, small_network, two_class_linear

threats = pytest.mark.parametrize("threat", THREATS, ids=str)


class Mine:
    """A defense that hands back whatever `answer` makes of the images, the labels and the logits."""

    def __init__(self, answer: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        self.answer = answer

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *_: object) -> Any:
        return self.answer(x, y, model(x))


def term(x: Tensor, y: Tensor, logits: Tensor) -> Term:
    return Term(cross_entropy(logits, y), logits, x)


HANDED_BACK: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], str]] = {
    "losses": (
        lambda _, y, logits: cross_entropy(logits, y),
        r"returned a tensor of shape \(\d,\); expected: it yields",
    ),
    "a loss": (lambda _, y, logits: cross_entropy(logits, y).mean(), r"returned a tensor of shape \(\); expected"),
    "a term": (term, "returned a Term; expected: it yields"),
    "nothing": (lambda *_: None, "returned None; expected: it yields"),
    "a number": (lambda *_: 0.5, "returned a float; expected: it yields"),
    "no terms": (lambda *_: [], "yielded nothing; expected"),
    "tensors": (lambda x, y, logits: iter(term(x, y, logits)), "yielded a tensor of shape .*; expected: Term"),
    "tuples": (lambda x, y, logits: [tuple(term(x, y, logits))], "yielded a tuple; expected: Term"),
    "a mean": (
        lambda x, y, logits: [term(x, y, logits)._replace(loss=cross_entropy(logits, y).mean())],
        r"yielded a Term whose loss is a tensor of shape \(\); expected: a tensor of shape \(\d,\)",
    ),
    "a loss of each logit": (
        lambda x, _, logits: [Term(logits, logits, x)],
        r"yielded a Term whose loss is a tensor of shape \(\d, 3\); expected: a tensor of shape \(\d,\)",
    ),
    "answers for logits": (
        lambda x, y, logits: [term(x, y, logits)._replace(logits=logits.argmax(1))],
        r"yielded a Term whose logits is .*; expected: a tensor of shape \(\d, classes\)",
    ),
    "no point": (
        lambda _, y, logits: [Term(cross_entropy(logits, y), logits, cast(Tensor, None))],
        "yielded a Term whose x_adv is None; expected",
    ),
    "a loss without a gradient": (
        lambda x, y, logits: [term(x, y, logits.detach())],
        "yielded a Term whose loss has no gradient; expected",
    ),
}


@pytest.mark.parametrize("handed", HANDED_BACK)
def test_what_is_no_term_gets_one_sentence(handed: str) -> None:
    answer, sentence = HANDED_BACK[handed]
    model, (x, y), mine = small_network(), small_batch(), cast(Defense, Mine(answer))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for use in (
        lambda: train_step(model, optimizer, mine, x, y, THREATS[0], generator()),
        lambda: passes_per_image(mine, THREATS[0]),
    ):
        with pytest.raises(UserError, match=f"^the defense Mine {sentence}") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_list_of_terms_trains_and_a_function_is_a_defense() -> None:
    model, (x, y) = small_network(), small_batch()

    def twice(model: nn.Module, x: Tensor, y: Tensor, *_: object) -> list[Term]:
        return [term(x, y, model(x)), term(x, y, model(x))]

    def never(*_: object) -> None: ...

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train_step(model, optimizer, twice, x, y, THREATS[0], generator())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the defense never returned None"):
        train_step(model, optimizer, never, x, y, THREATS[0], generator())  # type: ignore[arg-type]


@threats
def test_the_worst_point_is_that_of_every_image_where_an_attack_stops(threat: Threat) -> None:
    """Half of the labels are wrong: the linear loss still grows by eps times the dual norm, at all of them."""
    slope = torch.randn(36, generator=generator(3))
    model = two_class_linear(slope, bias=float(-0.5 * slope.sum()) + 0.3 * float(threat.eps * dual_norm(slope, threat)))
    x, y = torch.full((30, 1, 6, 6), 0.5), torch.arange(30) % 2
    towards = 1 - 2 * y  # of the second logit, to raise the loss
    before = model(x)[:, 1] * towards
    found = model(worst_point(model, x, y, threat, generator(), steps=20, reach=10))[:, 1] * towards
    torch.testing.assert_close(found - before, torch.full((30,), float(threat.eps * dual_norm(slope, threat))))
    attacked = Pgd(steps=20, reach=10)(model, x, y, threat, generator())
    sizes = threat.size(attacked - x)
    assert (sizes[y == 0] == 0).all()
    assert (sizes[y == 1] > 0).all()


@pytest.mark.parametrize("fields", [{}, {"steps": 3, "step": 0.01}, {"reach": 1.0, "start": "corner", "mode": "train"}])
def test_a_defense_of_the_worst_point_is_pgd_training(fields: dict[str, Any]) -> None:
    model, (x, y) = small_network(dropout=0).train(), small_batch()
    (ours,) = PgdAt(**fields)(model, x, y, THREATS[0], generator())
    model = small_network(dropout=0).train()
    assert torch.equal(worst_point(model, x, y, "linf:0.1", generator(), **fields), ours.x_adv)
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_the_worst_point_climbs_the_loss_it_is_given() -> None:
    model, (x, _) = small_network(dropout=0).eval(), small_batch()
    at_x = model(x).detach()
    point = worst_point(model, x, at_x, "linf:0.1", generator(), loss=divergence, start="near")
    assert (divergence(model(point), at_x) > divergence(model(THREATS[0].sample(x, generator())), at_x)).all()


@pytest.mark.parametrize("name", atent.__all__)
def test_every_name_of_the_package_can_be_imported(name: str) -> None:
    assert getattr(atent, name) is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": lambda y: y - 200}, "labels go from -200"),
        ({"y": lambda y: y + 7}, "network of 3 classes"),
        ({"y": lambda y: y[:2]}, r"labels of shape \(2,\)"),
        ({"mode": "Train"}, "unknown mode 'Train'"),
        ({"steps": 0}, "steps 0; allowed: 1 or more"),
    ],
    ids=["negative", "beyond the classes", "too few", "mode", "steps"],
)
def test_the_worst_point_refuses_wrong_labels_and_settings(change: dict[str, Any], words: str) -> None:
    model, (x, y) = small_network(), small_batch()
    fields = {key: value for key, value in change.items() if key != "y"}
    with pytest.raises(UserError, match=words):
        worst_point(model, x, change.get("y", lambda y: y)(y), "linf:0.1", generator(), **fields)
