import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Attack, Pgd
from atent.errors import UserError
from atent.evaluation.attack import attack_batch, attack_images, attack_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.inputs import check_points
from atent.models import Shape
from atent.network import predict, repeat
from atent.report.tables import class_results, finished, result_lines, results, worst_case
from atent.storage.row_file import RowFile
from atent.storage.rows import ATTACK, Row, median_distance, rate
from atent.threat import Threat
from toys import THREATS, small_network, stand_in

IMAGES = stand_in(Shape((1, 6, 6), 3), 20)
HEADER = {"label": "PGD-2", "threat": "linf:0.1", "data": "toy", "examples": 20, "model": "net", "weights": "abc"}


def rows_of() -> list[list[Row]]:
    return list(attack_images(small_network(), IMAGES, Pgd(steps=2), THREATS[0], batch=8))


def test_rows_contain_the_predictions() -> None:
    rows = [row for batch in rows_of() for row in batch]
    model = small_network().eval()
    x, y = IMAGES.batch(slice(None))
    assert [row["clean"] for row in rows] == predict(model, x).tolist()
    assert [row["label"] for row in rows] == y.tolist()
    assert [row["index"] for row in rows] == list(range(20))
    for row in rows:
        assert row["robust"] == (row["clean"] == row["label"] == row["adversarial"])
        assert row["size"] <= 0.1 + 1e-6


def target(model: nn.Module | None = None) -> Target:
    return Target(model or small_network(), "abc", "toy", IMAGES, "toy", None, Path("never"))


def run(folder: Path, attack: Attack | None = None, save_images: bool = False) -> Path:
    planned = Planned.of(attack or Pgd(steps=2), {"name": "it"}, THREATS[0])
    return attack_target(target(), planned, folder, batch=8, save_images=save_images)


def untimed(path: Path) -> list[str]:
    return [line.partition(', "seconds"')[0] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kept", range(1, 22))
def test_a_killed_attack_resumes_and_ends_with_the_same_rows_and_costs(kept: int, tmp_path: Path) -> None:
    """Killed after any line, in the middle of the next."""
    whole = run(tmp_path / "whole")
    lines = whole.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 20 + 3  # header, rows, a cost per batch
    cut = tmp_path / "cut" / "attack" / whole.name
    cut.parent.mkdir(parents=True)
    cut.write_text("".join(lines[:kept]) + lines[kept][:5])
    assert run(tmp_path / "cut") == cut
    assert untimed(cut) == untimed(whole)
    header, rows, cost, *_ = RowFile(ATTACK, cut).read()
    assert header["version"]
    assert header["classes"] == ["0", "1", "2"]
    assert len(rows) == 20
    assert cost.backward <= cost.forward
    assert cost.forward > 0


def test_a_finished_attack_stays_whichever_version_wrote_it(tmp_path: Path) -> None:
    path = run(tmp_path)
    header, *lines = path.read_text().splitlines()
    about = ("version", "classes", "checksum")
    older = {key: value for key, value in json.loads(header).items() if key not in about}
    rows = [line for line in lines if "cost" not in line]
    path.write_text("\n".join([json.dumps(older), *rows]) + "\n")
    before = path.read_bytes()
    assert run(tmp_path) == path
    assert path.read_bytes() == before
    path.write_text("\n".join([json.dumps(older | {"version": "0.0.1"}), *lines[:9]]) + "\n")  # unfinished
    run(tmp_path)
    assert RowFile(ATTACK, path).read().header["version"] != "0.0.1"


def test_passes_are_counted_from_outside(tmp_path: Path) -> None:
    class Twice:
        label = "twice"

        def __call__(self, model: nn.Module, x: Tensor, *_: Any, **__: Any) -> Tensor:
            model(x)
            point = x.clone().requires_grad_()
            torch.autograd.grad(model(point)[:, 0].sum(), point)
            return x

    cost = RowFile(ATTACK, run(tmp_path, Twice())).read().cost
    assert (cost.forward, cost.backward) == (40, 20)


class Away:
    """A minimal attack that goes a known way: 0, .05, .1 (the radius), .15 or nowhere, in turn."""

    label = "away"

    def nearest(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        way = torch.tensor([0.05, 0.1, 0.15, 0.0]).repeat(len(x))[: len(x)].view(-1, 1, 1, 1)
        return torch.where(x < 0.5, x + way, x - way)

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("evaluated at its nearest point")


def test_a_minimal_attack_breaks_what_it_found_within_the_radius(tmp_path: Path) -> None:
    class Knows(nn.Module):
        """Predicts the label of a clean image, and class 3 for a changed one."""

        def forward(self, x: Tensor) -> Tensor:
            clean, y = IMAGES.batch(slice(None))
            same = (x[:, None] == clean[None]).flatten(2).all(2)
            label = torch.where(same.any(1), y[same.int().argmax(1)], 3)
            return nn.functional.one_hot(label, 4).float()

    rows = attack_batch(Knows(), IMAGES, slice(0, 20), Away(), THREATS[0]).rows
    assert [row["robust"] for row in rows] == [False, False, True, True] * 5
    assert [row["distance"] for row in rows[:4]] == pytest.approx([0.05, 0.1, 0.15, None])
    assert median_distance(rows) == pytest.approx(0.125)
    assert median_distance(rows[3::4]) == float("inf")
    attack_target(target(Knows()), Planned.of(Away(), {"name": "away"}, THREATS[0]), tmp_path)
    (line,) = results(tmp_path)
    assert line.distance == pytest.approx(0.125)
    assert line.robust.value == 0.5


@pytest.mark.parametrize(("names", "shown"), [(("title", "label"), "title"), (("label",), "label"), ((), "it")])
def test_rows_have_the_title_of_a_users_attack(names: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    """`title` comes before `label`, its older name; an attack without either has the name in its settings."""

    class Nothing:
        def __call__(self, model: nn.Module, x: Tensor, *_: Any) -> Tensor:  # noqa: ARG002
            return x

    attack = type("Mine", (Nothing,), {name: name for name in names})()
    assert RowFile(ATTACK, run(tmp_path, attack)).read().header["label"] == shown


def test_only_a_change_beyond_rounding_is_random() -> None:
    """The figures are those of the change that is made between two passes."""

    class Changing(nn.Module):
        def __init__(self, change: float) -> None:
            super().__init__()
            self.change = change

        def forward(self, x: Tensor) -> Tensor:
            logits = torch.tensor([[10.0, 9.0], [0.0, 2.0]]).repeat(len(x) // 2, 1)
            logits[0, 1] += self.change
            self.change = -self.change
            return logits

    x = torch.rand(4, 1, 6, 6)
    small, large = repeat(Changing(1e-5), x), repeat(Changing(1.5), x)
    assert small.change == pytest.approx(2e-6, rel=0.1)
    assert (small.flips, small.random) == (0, False)
    assert large.change == pytest.approx(0.3)
    assert (large.flips, large.random) == (1, True)


def test_tables_by_class_and_by_radius(tmp_path: Path) -> None:
    for threat in (Threat("linf", 0.2), Threat("linf", 0.1)):
        for steps in (1, 2):
            attack_target(target(), Planned.of(Pgd(steps=steps), {"name": "pgd"}, threat), tmp_path, batch=8)
    found = finished(tmp_path)
    lines = result_lines(found)
    assert [line.threat for line in lines] == ["linf:0.1"] * 3 + ["linf:0.2"] * 3
    assert [line.attack for line in lines[:3]] == ["PGD-1", "PGD-2", "worst case"]
    for (title, classes), line in zip(class_results(found), lines[2::3], strict=True):
        assert f"{line.threat}, worst case of 2 attacks" in title
        assert [c.name for c in classes] == ["0", "1", "2"]
        assert sum(c.examples for c in classes) == 20
        assert sum(c.robust.value * c.examples for c in classes) == pytest.approx(20 * line.robust.value)


def test_other_settings_have_another_file(tmp_path: Path) -> None:
    def place(**changes: Any) -> Path:
        return RowFile.of(ATTACK, tmp_path, HEADER | changes).path

    assert place() != place(seed=1)
    assert place() == place(version="9", checksum="sha256")


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
    with pytest.raises(UserError, match=r"cheat returned a point outside .* for example 0"):
        list(attack_images(small_network(), IMAGES, Cheat(change), threat))


class InPlace(Cheat):
    """Changes the very images that its points are measured from."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        y += 1
        return x.add_(self.change)


class LeavesTrainMode(Cheat):
    """Lets dropout, not a point, break the network."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        model.train()
        return x.clone()


def test_an_attack_cannot_move_what_it_is_measured_by() -> None:
    with pytest.raises(UserError, match="cheat returned a point outside"):
        list(attack_images(small_network(), IMAGES, InPlace(0.2), THREATS[0]))
    (rows,) = attack_images(small_network(), IMAGES, InPlace(0.0), THREATS[0])
    assert [row["label"] for row in rows] == IMAGES.y.tolist()


def test_an_attack_is_evaluated_in_eval_mode_whatever_it_leaves_behind() -> None:
    (rows,) = attack_images(small_network(), IMAGES, LeavesTrainMode(0.0), THREATS[0])
    assert [row["adversarial"] for row in rows] == [row["clean"] for row in rows]


@pytest.mark.parametrize(("answer", "words"), [(None, "NoneType"), (torch.zeros(20, 1, 6, 6).half(), "float16")])
def test_what_is_not_a_tensor_of_points_is_an_error(answer: Any, words: str) -> None:
    def attack(*_: Any) -> Any:
        return answer

    with pytest.raises(UserError, match=f"returned (torch.)?{words}; allowed: a tensor of torch.float32"):
        list(attack_images(small_network(), IMAGES, attack, THREATS[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("threat", [Threat("l2", 5.0), Threat("linf", 8 / 255)], ids=str)
def test_rounding_of_large_images_is_not_a_violation(threat: Threat) -> None:
    x = torch.rand(2, 3, 224, 224)
    check_points(threat.project(x + 0.1 * torch.randn_like(x), x), x, threat, "project")


def test_a_point_outside_the_box_is_an_error() -> None:
    x = torch.ones(1, 1, 2, 2)
    with pytest.raises(UserError, match="outside"):
        check_points(x + 0.01, x, THREATS[0], "cheat")


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
    """Whatever the order of the rows: they are joined by their index."""

    def rows(*robust: tuple[int, bool]) -> list[Row]:
        return [Row(index=k, label=1, clean=1, adversarial=1, size=0.0, robust=held) for k, held in robust]

    attacks = [rows((0, True), (1, False), (2, True)), rows((2, False), (0, True), (1, True))]
    assert worst_case(attacks).value == pytest.approx(1 / 3)
    assert worst_case([attacks[0], rows((1, False), (2, True), (0, True))]).value == pytest.approx(2 / 3)
