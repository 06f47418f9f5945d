"""Attacks in sequence: who is attacked, by which attack an image is broken, and what is refused."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Apgd, Cascade, Pgd, Square, make_attack
from atent.attacks.cascade import Staged
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.attack import attack_batch, attack_target
from atent.evaluation.suites import Planned
from atent.evaluation.target import Target
from atent.recipe import parse_recipe
from atent.report.terminal import print_attacks
from atent.threat import Threat
from toys import generator, small_batch, small_network, two_class_linear

THREAT = Threat("linf", 0.1)
FLAT = torch.full((16,), 0.25)
GREY = [0.45, 0.47, 0.49, 0.51, 0.53, 0.55, 0.57, 0.59]


def grey_images() -> tuple[nn.Module, Tensor, Tensor]:
    """Images of one grey each; class 1 from .5 on, so an image's distance to the boundary is |grey - .5|."""
    x = torch.tensor(GREY).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    return two_class_linear(FLAT, bias=-2.0), x, (x[:, 0, 0, 0] > 0.5).long()


@dataclass
class Shift:
    """Moves every image across the boundary by so much, whether the threat allows it or not."""

    by: float
    title: str = "shift"
    seen: list[int] = field(default_factory=list)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        del model, threat, generator
        self.seen.append(len(x))
        return x + self.by * (1 - 2 * y.view(-1, 1, 1, 1))


def staged(cascade: Cascade) -> Staged:
    model, x, y = grey_images()
    return cascade.staged(model, x, y, THREAT, [generator(k) for k in range(len(x))])


def test_each_attack_sees_what_the_earlier_ones_left_and_is_named_for_what_it_broke() -> None:
    weak, strong, idle = Shift(0.02, "weak"), Shift(0.06, "strong"), Shift(0.0, "idle")
    by = staged(Cascade((weak, strong, idle))).by
    assert by == ["strong", "strong", "weak", "weak", "strong", "strong", None, None]
    assert (weak.seen, strong.seen, idle.seen) == ([8], [6], [2])


def test_the_order_changes_the_cost_and_not_the_verdict() -> None:
    model, _, y = grey_images()
    verdicts = []
    for order in ((0.02, 0.06), (0.06, 0.02)):
        points = staged(Cascade(tuple(map(Shift, order)))).points
        verdicts.append((model(points).argmax(1) == y).tolist())
    assert verdicts[0] == verdicts[1] == [False] * 6 + [True] * 2


def test_a_point_outside_the_threat_is_refused_by_the_name_of_its_attack() -> None:
    with pytest.raises(UserError, match=r"far returned a point outside linf:0\.1 for example 0"):
        staged(Cascade((Shift(0.02, "near"), Shift(0.3, "far"))))


def test_misclassified_images_are_not_attacked_and_broken_by_none() -> None:
    model, x, y = grey_images()
    shift = Shift(0.06)
    points, by, _ = Cascade((shift,)).staged(model, x, 1 - y, THREAT, [generator()] * len(x))
    assert by == [None] * len(x)
    assert shift.seen == []
    torch.testing.assert_close(points, x)


def test_an_image_has_the_same_outcome_alone_and_with_others() -> None:
    model, (x, _) = small_network(dropout=0).eval(), small_batch(8)
    y = model(x).argmax(1)
    cascade = Cascade((Apgd(steps=5), Square(queries=20)))
    together, by, _ = cascade.staged(model, x, y, THREAT, [generator(k) for k in range(8)])
    assert 0 < by.count(None) < 8
    for k in range(8):
        alone, (mine,), _ = cascade.staged(model, x[k : k + 1], y[k : k + 1], THREAT, [generator(k)])
        assert mine == by[k]
        torch.testing.assert_close(alone[0], together[k])


def test_rows_name_the_attack_that_broke_the_image() -> None:
    model, x, y = grey_images()
    images = Images(x, y, ("dark", "light"))
    rows = attack_batch(model, images, slice(0, 8), Cascade((Shift(0.02, "weak"), Shift(0.06, "strong"))), THREAT).rows
    assert [row["by"] for row in rows] == ["strong", "strong", "weak", "weak", "strong", "strong", None, None]
    assert [row["robust"] for row in rows] == [False] * 6 + [True] * 2


def test_the_command_names_what_each_attack_broke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x, y = grey_images()
    target = Target(model, "abc", "toy", Images(x, y, ("dark", "light")), "toy", None, Path("never"))
    cascade = Cascade((Shift(0.02, "weak"), Shift(0.06, "strong")))
    file = attack_target(target, Planned.of(cascade, {"name": "cascade"}, THREAT), tmp_path)
    print_attacks(tmp_path, [file], classes=False, images=False)
    assert "broken by strong 4, weak 2" in capsys.readouterr().out


def test_a_table_makes_a_cascade_and_its_settings_are_written_out() -> None:
    made = make_attack({"name": "cascade", "called": "mine", "attacks": [{"name": "pgd"}, {"name": "square"}]})
    assert isinstance(made, Cascade)
    assert made.attacks == (Pgd(), Square())
    assert made.title == "mine"
    assert made.settings is not None
    assert made.settings["attacks"][0]["steps"] == Pgd().steps


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"attacks": None}, "attacks = None; allowed: a list of tables"),
        ({"attacks": []}, r"attacks = \[\]; allowed: a list of tables"),
        ({"attacks": ["pgd"]}, "allowed: a list of tables"),
        ({"attacks": [{"name": "pdg"}]}, "pdg"),
        ({"attacks": [{"name": "pgd", "step": -1}]}, "step"),
        ({"attacks": [{"name": "pgd"}], "order": 1}, "order"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make_attack({"name": "cascade", **table})
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_only_shown_imports_no_attack_inside_a_cascade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {
        "data": "mnist-small",
        "model": "small-cnn",
        "threat": "linf:0.3",
        "epochs": 1,
        "defense": {"name": "pgd-at"},
        "monitor": {"name": "cascade", "attacks": [{"name": "pgd"}, {"name": "trap:Attack"}]},
    }
    shown = parse_recipe(table, "recipe", make="ours")
    assert shown.monitor == table["monitor"]
    with pytest.raises(UserError, match="SystemExit: imported"):
        parse_recipe(table, "recipe", make="all")


class Rounding(nn.Module):
    """Another prediction for the same images in batches of another size: stands for rounding next to the boundary."""

    def forward(self, x: Tensor) -> Tensor:
        wrong = (x.flatten(1).mean(1) > 0.5) & (len(x) < 4)
        return torch.stack([0.5 - wrong.float(), wrong.float()], 1)


def test_an_image_that_an_attack_broke_stays_broken_in_another_batch() -> None:
    """The cascade's second attack sees the last three images; all four are classified together afterwards."""
    x = torch.tensor([0.45, 0.46, 0.47, 0.48]).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    y = torch.tensor([1, 0, 0, 0])  # the first one is misclassified, so it is left out
    lighter = Shift(0.06, "lighter")
    found = attack_batch(Rounding(), Images(x, y, ("dark", "light")), slice(4), Cascade((lighter,)), THREAT)
    assert lighter.seen == [3]
    assert [row["by"] for row in found.rows] == [None, "lighter", "lighter", "lighter"]
    assert [row["adversarial"] for row in found.rows[1:]] == [1, 1, 1]
    assert not any(row["robust"] for row in found.rows)
