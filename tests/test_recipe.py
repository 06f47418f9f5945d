import dataclasses
import re
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from torch import nn

from atent.attacks import Pgd
from atent.defenses import Atent, PgdAt, Standard, Trades
from atent.errors import UserError
from atent.methods import parse_setting
from atent.models import Shape, Standardized
from atent.models.build import build_model
from atent.optim.optimizers import Adam, Sgd
from atent.recipe import load_recipe, parse_recipe
from atent.storage.recipe_files import RECIPES, RENAMED, recipe_names
from atent.training.start import make_model
from toys import generator, small_batch, small_network, stand_in

TABLES = {  # of the paper: every row, and what fine-tuning starts from
    "mnist-l2": ["standard", "entropy-sgd", "pgd-at", "trades", "mma", "atent-paper"],
    "mnist-linf": ["standard", "entropy-sgd", "pgd-at", "trades", "mma", "mart", "atent-paper"],
    "cifar10-linf": ["pgd-at", "pgd-at-early", "trades", "mart", "atent-paper", "finetune-paper"],
    "cifar10-l2": ["pgd-at", "mma", "atent-paper"],
    "cifar10": ["standard"],
    "mnist-smooth": ["gaussian", "adv", "atent", "trades"],
    "cifar10-smooth": ["gaussian", "adv", "atent-paper", "trades"],
}
NEW = {
    "temperature",
    "start_scale",
    "pull_rate",
    "decay",
    "label_smoothing",
}  # fields of every search; each had some of the others
ADDED = {"atent": set[str](), "fast": {"steps", "step", "direction", "pull", "project"}} | {
    name: {"direction", "pull", "project", "mode"} for name in ("trades", "mart", "trades-smooth")
}
PROMISED = {f"{table}-{row}" for table, rows in TABLES.items() for row in rows}


def test_every_promised_recipe_is_there() -> None:
    assert set(recipe_names()) >= PROMISED


def header(name: str) -> str:
    lines = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    return " ".join(takewhile(lambda line: line.startswith("#"), lines))


@pytest.mark.parametrize("name", recipe_names())
def test_a_header_tells_the_command_the_time_and_what_to_expect(name: str) -> None:
    assert f"atent train {name}" in header(name)
    assert re.search(r"(second|minute|hour|day)s?\b|as long as", header(name), flags=re.IGNORECASE)
    assert re.search(r"\d\d\.\d|no figure|about \d\d|expect|published", header(name), flags=re.IGNORECASE)


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).defense["name"] == "atent"])
def test_an_atent_recipe_that_is_pgd_training_but_for_its_noise_says_so(name: str) -> None:
    recipe = load_recipe(name)
    defense, threat = recipe.methods.defense, recipe.make_threat()
    assert isinstance(defense, Atent)
    model, (x, y) = small_network(dropout=0).eval(), small_batch()
    quiet = list(dataclasses.replace(defense, noise=0.0)(model, x, y, threat, generator()))
    pgd = PgdAt(steps=defense.steps, step=defense.step, reach=defense.reach)
    (rival,) = pgd(model, x, y, threat, generator())
    assert ("PGD training" in header(name)) == (len(quiet) == 1 and torch.equal(quiet[0].x_adv, rival.x_adv))


def test_defaults_are_written_out_and_make_the_same_methods_again() -> None:
    recipe = load_recipe("mnist-l2-atent-paper")
    assert recipe.defense["pull"] == "auto"
    assert recipe.defense["tolerance"] == Atent().tolerance
    assert recipe.methods.defense == Atent(
        steps=40, step=0.25, noise=1e-3, pull="auto", share=0.9, start="gaussian", project="never", mode="train"
    )
    assert recipe.methods.monitor == Pgd(steps=40, step=0.25)
    assert type(recipe).model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).defense.get("decay", 1) == 1])
def test_a_run_from_before_the_shared_search_can_be_resumed(name: str, tmp_path: Path) -> None:
    """Its recipe.json has none of the fields that every search has now."""
    recipe = load_recipe(name)
    older = recipe.model_dump(mode="json")
    added = NEW | ADDED.get(recipe.defense["name"], {"direction", "pull", "project"})
    older["defense"] = {key: value for key, value in older["defense"].items() if key not in added}
    recipe.check_same(parse_recipe(older, "recipe.json"), tmp_path)


def test_a_run_from_before_shrinking_steps_keeps_its_chain() -> None:
    """The defense in recipe.json of the demo as it was then."""
    older = load_recipe("demo").model_dump(mode="json")
    older["defense"] = {"name": "atent", "steps": 7, "reach": 2.0, "noise": 1e-3, "share": 0.9, "tolerance": 0.1}
    chain = parse_recipe(older, "recipe.json").methods.defense
    assert chain == Atent(steps=7, reach=2.0, decay=1.0, temperature=0.0, noise=1e-3, share=0.9, tolerance=0.1)


def test_a_change_of_one_field_leaves_the_others_of_the_recipe() -> None:
    """Also one that brings the defaults of equal steps: the recipe names its own."""
    fields = ("steps", "step", "reach", "decay")
    paper = load_recipe("mnist-linf-atent-paper", {"defense.noise": 1e-4, "defense.step": 0.02}).defense
    assert [paper[key] for key in fields] == [40, 0.02, 2.0, 1.0]
    demo = load_recipe("demo", {"defense.reach": 3.0}).defense
    assert [demo[key] for key in fields] == [10, None, 3.0, 1.0]
    assert load_recipe("demo", {"defense.steps": 3}).defense["decay"] == 0.125


def test_two_words_make_trades_on_a_noisy_chain() -> None:
    recipe = load_recipe("demo", {"defense": "trades", "defense.temperature": 0.5})
    assert recipe.methods.defense == Trades(temperature=0.5)


@pytest.mark.parametrize(("given", "noise"), [({"temperature": 0.5}, 0.0), ({"noise": 0.1}, 0.1), ({"steps": 2}, 1e-3)])
def test_a_given_noise_takes_the_place_of_the_recipes(given: dict[str, float], noise: float) -> None:
    recipe = load_recipe("mnist-linf-pgd-quick", {f"defense.{key}": value for key, value in given.items()})
    assert (recipe.defense["temperature"], recipe.defense["noise"]) == (given.get("temperature", 0.0), noise)
    with pytest.raises(UserError, match=r"temperature 0.5 and noise 0.1 both set the noise"):
        load_recipe("demo", {"defense.temperature": 0.5, "defense.noise": 0.1})


def test_overrides_reach_every_level() -> None:
    recipe = load_recipe("demo", {"epochs": 2, "defense.steps": 3, "optimizer.lr": 0.5})
    assert (recipe.epochs, recipe.defense["steps"], recipe.optimizer["lr"]) == (2, 3, 0.5)


def test_another_method_drops_the_fields_of_the_first() -> None:
    recipe = load_recipe("demo", {"defense.name": "standard", "optimizer.name": "adam", "optimizer.weight_decay": 0.1})
    assert recipe.defense == {"name": "standard", **dataclasses.asdict(Standard())}
    assert recipe.methods.optimizer == Adam(weight_decay=0.1)


def test_other_values_of_the_same_method_stay() -> None:
    recipe = load_recipe("mnist-l2-atent-paper", {"optimizer.lr": 0.5, "monitor.steps": 3})
    assert recipe.methods.optimizer == Sgd(lr=0.5, momentum=0.9)
    assert recipe.methods.monitor == Pgd(steps=3, step=0.25)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("epochs=2", "epochs", 2),
        ("defense.pull=auto", "defense.pull", "auto"),
        ("threat=linf:8/255", "threat", "linf:8/255"),
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("schedule.milestones=[1,2]", "schedule.milestones", [1, 2]),
        ("standardize=true", "standardize", True),
    ],
)
def test_settings_are_toml_values_or_text(text: str, key: str, value: object) -> None:
    assert parse_setting(text) == (key, value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"epoch": 2}, ["epoch", "epochs", "batch"]),
        ({"defense.stepz": 2}, ["stepz", "steps", "noise"]),
        ({"optimizer.rate": 2}, ["rate", "lr"]),
        ({"schedule.name": "linear"}, ["linear", "one-cycle"]),
        ({"defense.name": "magic"}, ["magic", "atent", "pgd-at"]),
        ({"defense.steps": 0}, ["steps", "0", "greater"]),
        ({"defense.steps": "many"}, ["steps", "many", "integer"]),
        ({"defense.share": 1.5}, ["share", "1.5", "less than or equal to 1"]),
        ({"defense.noise": float("nan")}, ["noise", "nan"]),
        ({"defense.pull": "strong"}, ["pull", "strong"]),
        ({"defense.project": "often"}, ["project", "often", "every"]),
        ({"defense.name": "nowhere.at_all:Mine"}, ["nowhere.at_all:Mine", "package.module:Name"]),
        ({"threat": "linf:-1"}, ["-1", "allowed"]),
        ({"epochs": 0}, ["epochs", "0", "greater"]),
        ({"monitor.name": "fgsmm"}, ["fgsmm", "pgd"]),
        ({"data.x": 1}, ["data"]),
        ({"defense.pull": "auto", "defense.step": 0.5}, ["pull 'auto'", "step <= eps"]),
        ({"defense.pull": "auto", "defense.step": 0.1}, ["0.1", "eps_warmup = 0"]),
        ({"monitor.name": "atent-chain", "monitor.pull": "auto", "monitor.step": 0.5}, ["pull 'auto'", "step <= eps"]),
    ],
)
def test_mistakes_are_told_in_one_line(overrides: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("demo", overrides)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def wrong_classes(shape: Shape) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, shape.classes + 1))


def wrong_images(shape: Shape) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(100, shape.classes))


def own_network(shape: Shape) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, shape.classes))


@pytest.mark.parametrize(("name", "words"), [("wrong_classes", r"\(2, 11\).*\(2, 10\)"), ("wrong_images", "784")])
def test_a_network_that_does_not_fit_the_data_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_model(f"{__name__}:{name}", Shape((1, 28, 28), 10))


def test_a_users_network_is_imported_and_standardizes_first() -> None:
    recipe = load_recipe("demo", {"model": f"{__name__}:own_network", "standardize": True})
    model = make_model(recipe, stand_in(Shape((1, 28, 28), 10), 20))
    assert isinstance(model, Standardized)
    assert isinstance(model.network, nn.Sequential)
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("key", ["defense", "optimizer", "schedule", "monitor"])
def test_a_methods_name_may_stand_for_its_table(key: str) -> None:
    name = {"defense": "trades", "optimizer": "adam", "schedule": "cosine", "monitor": "fgsm"}[key]
    assert load_recipe("demo", {key: name}) == load_recipe("demo", {f"{key}.name": name})


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'demoo'.*mnist-linf-pgd-quick"):
        load_recipe("demoo")


@pytest.mark.parametrize(
    ("old", "new"),
    [("mnist-linf-atent-fast", "mnist-linf-pgd-quick"), ("mnist-l2-atent-fast", "mnist-l2-atent-quick")],
)
def test_an_old_name_answers_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(UserError, match=f"^{old} is now called {new}$"):
        load_recipe(old, {"epochs": 1})
    assert load_recipe(new)


def test_no_recipe_hides_behind_an_old_name() -> None:
    assert not set(RENAMED) & set(recipe_names())
    assert set(RENAMED.values()) <= set(recipe_names())


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml"):
        load_recipe(str(tmp_path / "absent.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("data = ")
    with pytest.raises(UserError, match=r"broken\.toml"):
        load_recipe(str(broken))
    broken.write_text('data = "mnist"')
    with pytest.raises(UserError, match="model is missing"):
        load_recipe(str(broken))


def test_a_recipe_inherits_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "own-images"\ndata = "clothes"\n[defense]\nsteps = 3\n[optimizer]\nname = "sgd"\nlr = 0.05\n'
    )
    (tmp_path / "again.toml").write_text('base = "mine.toml"\nepochs = 2\n[defense]\nname = "trades"\n')
    base, mine = load_recipe("own-images"), load_recipe(str(tmp_path / "mine.toml"))
    assert (mine.data, mine.epochs, mine.threat) == ("clothes", base.epochs, base.threat)
    assert mine.methods.defense == dataclasses.replace(base.methods.defense, steps=3)  # type: ignore[type-var]
    assert mine.methods.optimizer == Sgd(lr=0.05)  # another method: its fields alone
    again = load_recipe(str(tmp_path / "again.toml"), {"defense.beta": 2.0})  # a path is relative to the file
    assert (again.data, again.epochs) == ("clothes", 2)
    assert again.methods.defense == Trades(beta=2.0)
    assert again.methods.optimizer == Sgd(lr=0.05)


def test_a_method_without_fields_may_be_a_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "own-images"\ndefense = "trades"\nschedule = "cosine"\n')
    mine = load_recipe(str(tmp_path / "mine.toml"))
    assert mine.methods.defense == Trades()
    assert mine.rates.rate(1.0, 1) == pytest.approx(0)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("'own-image'", "unknown recipe 'own-image'; did you mean own-images"),
        ("'mine.toml'", "leads back to"),
        ("3", "base = 3; allowed: the name of a recipe"),
        ("'gone.toml'", "gone.toml"),
    ],
)
def test_a_wrong_base_is_named(base: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"base = {base}\n")
    with pytest.raises(UserError, match=re.escape(words)):
        load_recipe(str(tmp_path / "mine.toml"))


def test_a_threat_written_in_another_way_is_the_same_recipe(tmp_path: Path) -> None:
    ours = load_recipe("demo", {"threat": "linf:8/255"})
    ours.check_same(load_recipe("demo", {"threat": f"linf:{8 / 255!r}"}), tmp_path)
    with pytest.raises(UserError, match=r"different: threat\)"):
        ours.check_same(load_recipe("demo", {"threat": "linf:0.0314"}), tmp_path)
