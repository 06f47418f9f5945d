"""`help` shows types that a person can read."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

import atent
from atent.attacks import ATTACKS
from atent.defenses import DEFENSES, Search
from atent.methods import Count, Fraction, Mode, Size, defaults, in_words
from atent.optim import OPTIMIZERS

FUNCTIONS = ["ascend", "certify", "evaluate", "fit", "load", "open_target", "train", "worst_point"]
SHOWN = {**ATTACKS, **DEFENSES, **OPTIMIZERS, **{name: getattr(atent, name) for name in FUNCTIONS}}


@pytest.mark.parametrize("name", SHOWN)
def test_a_signature_has_no_machinery_in_it(name: str) -> None:
    parameters = inspect.signature(SHOWN[name]).parameters.values()
    shown = " ".join(inspect.formatannotation(one.annotation) for one in parameters)
    for word in ("Annotated", "FieldInfo", "typing.", "collections.", "torch.nn.modules", "NoneType", "Union["):
        assert word not in shown


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Count, "int (>= 1)"),
        (Fraction, "float (> 0, <= 1)"),
        (Size | None, "float (> 0) | None"),
        (Mode, "'eval' | 'train'"),
        (str | int, "str | int"),
    ],
)
def test_limits_and_choices_in_words(annotation: Any, words: str) -> None:
    assert in_words(annotation) == words


def test_a_class_of_a_user_shows_its_own_fields_too() -> None:
    """So that a field at its default is known when a run is resumed."""

    @dataclass(frozen=True)
    class Mine(Search):
        weight: float = 2.0

        def loss_at(self, *_: Any) -> Any: ...

    assert "weight" in inspect.signature(Mine).parameters
    assert defaults(Mine())["weight"] == 2.0


@pytest.mark.parametrize("name", ["Term", "worst_point", "ascend", "Search", "Loss", "cross_entropy", "divergence"])
def test_what_a_methods_author_needs_is_in_the_package(name: str) -> None:
    assert name in atent.__all__
