import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Pgd
from atent.errors import UserError
from atent.evaluate import (
    Row,
    append_rows,
    attack_file,
    attack_images,
    check_inside,
    finished_rows,
    predict,
    rate,
    read_attack,
)
from atent.models import Shape
from atent.report import worst_case
from atent.threat import Threat
from toys import THREATS, small_network, stand_in

IMAGES = stand_in(Shape((1, 6, 6), 3), 20)
HEADER = {"label": "PGD-2", "threat": "linf:0.1", "data": "toy", "examples": 20, "weights": "abc"}


def rows_of(skip: int = 0) -> list[list[Row]]:
    return list(attack_images(small_network(), IMAGES, Pgd(steps=2), THREATS[0], batch=8, skip=skip))


def test_rows_say_what_the_network_says() -> None:
    rows = [row for batch in rows_of() for row in batch]
    model = small_network().eval()
    x, y = IMAGES.batch(slice(None))
    assert [row["clean"] for row in rows] == predict(model, x).tolist()
    assert [row["label"] for row in rows] == y.tolist()
    assert [row["index"] for row in rows] == list(range(20))
    for row in rows:
        assert row["robust"] == (row["clean"] == row["label"] == row["adversarial"])
        assert row["size"] <= 0.1 + 1e-6


def test_a_killed_attack_goes_on_and_ends_with_the_same_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert list(append_rows(whole, HEADER, iter(rows_of()), 0)) == [8, 16, 20]
    lines = whole.read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:12]) + lines[12][:5])  # the header, 11 rows and a piece
    done = finished_rows(cut, HEADER, batch=8)
    assert done == 8
    assert list(append_rows(cut, HEADER, iter(rows_of(done)), done)) == [16, 20]
    assert cut.read_text() == whole.read_text()
    assert finished_rows(cut, HEADER, batch=8) == 20
    header, rows = read_attack(cut)
    assert header == HEADER
    assert len(rows) == 20


def test_other_settings_start_anew_in_another_file(tmp_path: Path) -> None:
    assert attack_file(tmp_path, HEADER) != attack_file(tmp_path, HEADER | {"seed": 1})
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(HEADER | {"weights": "other"}) + "\n")
    assert finished_rows(path, HEADER | {"weights": "mine"}, batch=8) == 0


class Cheat:
    """An attack that leaves the ball, the box, or the numbers."""

    label = "cheat"

    def __init__(self, change: float) -> None:
        self.change = change

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return x + self.change


@pytest.mark.parametrize("change", [0.2, float("nan"), float("inf")])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_a_point_outside_the_threat_is_an_error(threat: Threat, change: float) -> None:
    with pytest.raises(UserError, match=r"Cheat returned a point outside .* for example 0"):
        list(attack_images(small_network(), IMAGES, Cheat(change), threat))


@pytest.mark.parametrize("threat", [Threat("l2", 5.0), Threat("linf", 8 / 255)], ids=str)
def test_rounding_of_large_images_is_not_a_violation(threat: Threat) -> None:
    x = torch.rand(2, 3, 224, 224)
    check_inside(threat.project(x + 0.1 * torch.randn_like(x), x), x, threat, "project")


def test_a_point_outside_the_box_is_an_error() -> None:
    x = torch.ones(1, 1, 2, 2)
    with pytest.raises(UserError, match="outside"):
        check_inside(x + 0.01, x, THREATS[0], "cheat")


def test_networks_that_answer_nonsense_are_refused() -> None:
    x = torch.rand(2, 1, 6, 6)
    with pytest.raises(UserError, match="NaN"):
        predict(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).apply(spoil), x)
    with pytest.raises(UserError, match="expected logits"):
        predict(nn.Identity(), x)


def spoil(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, float("nan"))


def test_wilson_interval_against_its_formula() -> None:
    z, p, n = 1.959963984540054, 0.9, 50
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    found = rate([True] * 45 + [False] * 5)
    assert found.value == 0.9
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half))


def test_worst_case_is_per_example() -> None:
    base = Row(index=0, label=1, clean=1, adversarial=1, size=0.0, robust=True)
    broken: Row = {**base, "robust": False}
    assert worst_case([[base, broken, base], [base, base, broken]]).value == pytest.approx(1 / 3)
