"""A monitor of several attacks: what a masked network is rated, what each attack broke, and when a training warns."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atent.attacks import Apgd, Cascade, Fgsm, Pgd, Square, make_attack
from atent.attacks.protocols import Attack
from atent.errors import UserError
from atent.methods import is_single_step
from atent.recipe import Recipe, parse_recipe, recipe_of
from atent.storage.run import Run
from atent.training.alarms import masked, unwatched
from atent.training.fit import fit
from atent.training.options import TrainingOptions
from short_runs import QUIET, tiny

PGD: dict[str, object] = {"name": "pgd", "steps": 5}
SEVERAL: dict[str, object] = {"name": "cascade", "attacks": [PGD, {"name": "square", "queries": 60}]}


class Quantized(nn.Module):
    """A linear network that rounds its pixels to eighths: its predictions change with them, its gradient is 0."""

    def __init__(self, levels: int | None) -> None:
        super().__init__()
        self.levels, self.linear = levels, nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear((x if self.levels is None else (x * self.levels).round() / self.levels).flatten(1))
        return logits


def trained(folder: Path, levels: int | None, monitor: dict[str, object]) -> tuple[Run, list[str]]:
    torch.manual_seed(0)
    said: list[str] = []
    recipe = tiny(
        defense__name="standard", choose="robust", threat="linf:0.1", epochs=2, monitor=monitor, monitor_examples=100
    )
    return fit(recipe, folder, model=Quantized(levels), how=TrainingOptions(say=said.append)), said


def test_a_masked_network_is_rated_lower_by_several_attacks_and_named_once(tmp_path: Path) -> None:
    alone, quiet = trained(tmp_path / "alone", 8, PGD)
    several, said = trained(tmp_path / "several", 8, SEVERAL)
    for one, other in zip(alone.history(), several.history(), strict=True):
        assert one["loss"] == other["loss"]
        assert other["robust"] <= one["robust"] - 0.1
        assert other["masked"]
        assert sum(other["broken_by"].values()) == round(100 * (other["clean"] - other["robust"]))
    (warning,) = [line for line in said if "masked" in line]
    broken = several.history()[0]["broken_by"]["Square-60"]
    assert f"Square-60, without gradients, broke {broken} of 100 held-out images" in warning
    assert "\n" not in warning
    assert not [line for line in quiet if "masked" in line]


def test_a_plain_network_gets_no_warning(tmp_path: Path) -> None:
    run, said = trained(tmp_path, None, SEVERAL)
    assert run.history()[-1]["broken_by"]["PGD-5"] > 20
    assert not [line for line in said if "masked" in line]
    assert not [row for row in run.history() if "masked" in row]


@pytest.mark.parametrize(
    ("attacks", "broken", "warns"),
    [
        ((Pgd(steps=9), Square(queries=9)), {"PGD-9": 30, "Square-9": 5}, True),
        ((Pgd(steps=9), Square(queries=9)), {"PGD-9": 30, "Square-9": 4}, False),  # 2 % of 200
        ((Pgd(steps=9), Square(queries=9), Square(queries=8)), {"PGD-9": 0, "Square-9": 3, "Square-8": 2}, True),
        ((Square(queries=9), Pgd(steps=9)), {"PGD-9": 0, "Square-9": 50}, False),  # before the gradients
        ((Square(queries=9), Pgd(steps=9), Square(queries=8)), {"PGD-9": 0, "Square-9": 50, "Square-8": 5}, True),
        ((Square(queries=9),), {"Square-9": 50}, False),
    ],
)
def test_masked_gradients_are_named_when_attacks_without_them_break_what_is_left(
    attacks: tuple[Attack, ...], broken: dict[str, int], warns: bool
) -> None:
    assert bool(masked(Cascade(attacks), broken, 200)) is warns
    assert masked(Pgd(), {}, 200) == ""


def test_a_cascade_that_names_no_attacks_ends_without_gradients_and_is_written_out() -> None:
    recipe = tiny(monitor={"name": "cascade"})
    monitor = make_attack(recipe.monitor)
    assert isinstance(monitor, Cascade)
    assert monitor == recipe.methods.monitor
    assert isinstance(monitor.attacks[-1], Square)
    assert recipe.monitor["attacks"][-1]["p_init"] == Square().p_init
    assert not is_single_step(monitor)


def test_a_cascade_of_single_steps_does_not_detect_a_collapse() -> None:
    attacks = {"name": "cascade", "attacks": [{"name": "fgsm"}, {"name": "fgsm", "loss": "margin"}]}
    assert is_single_step(Cascade((Fgsm(), Pgd(steps=1))))
    assert "a monitor with one step (cascade)" in unwatched(tiny(defense__name="fast", monitor=attacks))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ({"name": "smooth-pgd"}, "monitor smooth-pgd needs a smoothed network; set smooth"),
        ({"name": "atent-chain", "pull": "auto", "step": 0.5}, r"pull 'auto'.*step <= eps"),
        ({"name": "pgd", "stepz": 3}, r"unknown attack field 'stepz'; did you mean step\? known: .*steps \(monitor\)"),
        ({"steps": 3}, r"attack without a name; .*\(monitor\)"),
    ],
)
def test_an_attack_inside_is_refused_in_one_line_before_training(attack: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        tiny(monitor={"name": "cascade", "attacks": [PGD, attack]})
    assert "\n" not in str(caught.value)


def test_a_run_from_before_a_field_was_added_is_still_the_same_recipe(tmp_path: Path) -> None:
    recipe, run = tiny(monitor=SEVERAL), Run(tmp_path)
    older = recipe.model_dump(mode="json")
    del older["monitor"]["attacks"][1]["p_init"]
    run.begin(older, {}, {})
    recipe.check_same(recipe_of(run), run.folder)
    older["monitor"]["attacks"][1]["queries"] = 61
    with pytest.raises(UserError, match=r"different: monitor\)"):
        recipe.check_same(parse_recipe(older, "older"), run.folder)


def test_a_recipe_of_a_run_keeps_its_monitor_whatever_the_usual_attacks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiny(monitor={"name": "cascade"}).model_dump(mode="json")
    monkeypatch.setattr("atent.attacks.USUAL", [{"name": "fgsm"}])
    assert Recipe.model_validate(table).monitor == table["monitor"]


def test_a_smoothed_network_is_evaluated_by_several_attacks(tmp_path: Path) -> None:
    monitor = {"name": "cascade", "attacks": [{"name": "smooth-pgd", "steps": 2}, {"name": "square", "queries": 5}]}
    recipe = tiny(defense__name="standard", epochs=1, threat="l2:0.5", smooth=0.25, monitor_draws=4, monitor=monitor)
    (row,) = fit(recipe, tmp_path, how=QUIET).history()
    assert len(row["broken_by"]) == 2
    assert sum(row["broken_by"].values()) <= round(
        20 * (1 - row["robust"])
    )  # each draw of noise has its own prediction


def test_an_older_run_is_resumed_with_the_default_monitor_of_its_time(tmp_path: Path) -> None:
    table = {"data": "mnist-small", "model": "lenet5", "threat": "linf:0.1", "epochs": 1, "validation": 5800}
    table |= {"defense": {"name": "standard"}, "monitor_examples": 20}
    older = {**table, "monitor": {"name": "pgd", "steps": 20}}
    fit(parse_recipe(older, "older", make="all"), tmp_path, how=QUIET)
    kept = [row["robust"] for row in fit(parse_recipe(table, "same", make="all"), tmp_path, how=QUIET).history()]
    assert recipe_of(Run(tmp_path)).monitor["name"] == "pgd"
    assert len(kept) == 1
    other = {**table, "monitor": {"name": "apgd", "steps": 20}}
    with pytest.raises(UserError, match=r"different: monitor\)"):
        fit(parse_recipe(other, "another", make="all"), tmp_path, how=QUIET)


def test_fields_without_a_name_are_those_of_the_default_monitor() -> None:
    table = {"data": "mnist-small", "model": "lenet5", "threat": "linf:0.1", "epochs": 1, "defense": {"name": "atent"}}
    assert parse_recipe(table, "recipe", make="ours").methods.monitor == Apgd(steps=20)
    assert parse_recipe({**table, "monitor": {"steps": 7}}, "recipe", make="ours").methods.monitor == Apgd(steps=7)
