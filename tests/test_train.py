import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atent.training.fit
from atent.data.images import Images
from atent.data.published import SOURCES, Published
from atent.defenses import Mma, Term
from atent.errors import UserError
from atent.evaluation.target import open_target
from atent.losses import cross_entropy
from atent.models import MODELS, Shape
from atent.models.weights import read_weights
from atent.recipe import load_recipe, recipe_of
from atent.storage.files import load_tensors
from atent.storage.recipe_files import recipe_names
from atent.threat import Threat
from atent.training.alarms import Tally
from atent.training.fit import fit
from atent.training.loss_scale import NotFiniteError
from atent.training.options import TrainingOptions
from atent.training.start import initial_state
from atent.training.state import State
from atent.training.step import Step, train_step
from short_runs import QUIET, assert_same_run, tiny
from toys import THREATS, generator, own_folder, small_batch, small_network, stand_in, two_class_linear

GOLDEN = Path(__file__).parent / "golden" / "losses.json"


def test_a_defense_without_terms_is_refused() -> None:
    class Idle:
        def __call__(self, *_: Any) -> Any:
            return iter(())

    idle: Any = Idle()
    model, (x, y) = small_network(), small_batch()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UserError, match="the defense Idle yielded nothing"):
        train_step(model, optimizer, idle, x, y, THREATS[0], generator())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone() -> None:
    """sqrt has an infinite slope at 0: a finite loss with an infinite gradient."""

    class Steep:
        def __call__(self, model: Any, x: Tensor, *_: Any) -> Any:
            logits = model(x)
            yield Term((logits - logits.detach()).abs().sqrt().sum(1), logits, x)

    steep: Any = Steep()
    model, (x, y) = small_network(), small_batch()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(NotFiniteError):
        train_step(model, optimizer, steep, x, y, THREATS[0], generator())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_patience_ends_a_training_that_gets_no_better_and_a_resumed_one_too(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = tiny(epochs=20, patience=2, optimizer__lr=1e-12, averaging=0, defense__name="standard")
    run = fit(recipe, tmp_path, how=TrainingOptions(say=said.append))
    assert len(run.history()) == 3  # no later epoch is better than the first
    assert "stopped early: no better epoch among the last 2 (patience)" in said[-1]
    assert len(fit(recipe, tmp_path, how=QUIET).history()) == 3


def test_images_on_the_disk_train_bit_for_bit_like_those_in_memory(tmp_path: Path) -> None:
    recipe = tiny(data=own_folder(tmp_path / "own"), validation=0.2, batch=16, standardize=True)
    memory = fit(recipe, tmp_path / "memory", how=replace(QUIET, stream=False))
    assert_same_run(fit(recipe, tmp_path / "disk", how=replace(QUIET, stream=True, workers=3)), memory)


def test_a_python_object_is_trained_and_evaluated(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    run = fit(tiny(epochs=1), tmp_path, model=network, how=QUIET)
    assert "Sequential (a Python object)" in recipe_of(run).model
    with pytest.raises(UserError, match=r"a Python object.*--model package\.module:function"):
        open_target(run.folder)
    assert open_target(run.folder, model=network, examples=5).model == "Sequential"


def test_curves_are_drawn_once_for_each_epoch(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fit(tiny(epochs=2), tmp_path, how=replace(QUIET, tensorboard=True))
    run = fit(tiny(epochs=2), tmp_path, how=replace(QUIET, tensorboard=True))
    events = accumulator.EventAccumulator(str(run.board))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (row["epoch"], pytest.approx(row["loss"])) for row in run.history()
    ]


def test_averaged_weights_are_what_is_kept(tmp_path: Path) -> None:
    run = fit(tiny(epochs=1, averaging=0.9), tmp_path, how=QUIET)
    last, best = load_tensors(run.last)[0], load_tensors(run.best)[0]
    name = "classifier.fc3.weight"
    assert torch.equal(best[name], last[f"average//module.{name}"])
    assert not torch.equal(best[name], last[name])
    evaluated = read_weights(run.last)  # `atent attack RUN/last.safetensors` attacks what the monitor evaluated
    assert evaluated.keys() == best.keys()
    assert all(torch.equal(evaluated[name], best[name]) for name in best)


def test_the_test_set_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = Published.images

    def watched(self: Published, split: Any) -> Images:
        read.append(split)
        return original(self, split)

    monkeypatch.setattr(Published, "images", watched)
    fit(tiny(epochs=1), tmp_path, how=QUIET)
    assert read == ["train"]


def test_the_plateau_is_noticed_and_named(tmp_path: Path) -> None:
    """Also where the loss is only a part of the cross-entropy, as with ATENT's shares."""
    said: list[str] = []
    recipe = tiny(epochs=1, optimizer__lr=1e-9, schedule__eps_warmup=0, averaging=0, defense__share=0.3)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(atent.training.fit, "initial_state", blank_state)
    run = fit(recipe, tmp_path, how=TrainingOptions(say=said.append))
    monkey.undo()
    assert run.history()[0]["plateau"] is True
    assert any("stuck at 2.303, that of" in line and "schedule.warmup" in line for line in said)


@pytest.mark.parametrize(
    ("before", "knowing", "named", "marked"),
    [
        pytest.param(20, 50, ["epoch 1, batch 170"], [1, 2], id="fell back"),
        pytest.param(20, 170, ["epoch 2, batch 91"], [2], id="fell back at the end of an epoch"),
        pytest.param(250, 150, ["epoch 1, batch 199"], [1], id="began late"),
        pytest.param(150, 250, [], [], id="began in time"),
    ],
)
def test_a_network_that_falls_back_to_one_answer_is_named_a_hundred_batches_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, knowing: int, named: list[str], marked: list[int]
) -> None:
    """Its losses scatter as they did in trainings that got stuck: by .015 a batch."""
    knows, scatter = Step(0.5, 0.5, 1, 0.0), (0.015 * torch.randn(400, generator=generator())).tolist()
    steps = [Step(2.303 + noise, 2.303 + noise, 0, 0.0) for noise in scatter]
    steps[before : before + knowing] = [knows] * knowing
    taken = iter(steps)
    monkeypatch.setattr(atent.training.fit, "train_step", lambda *_, **__: next(taken))
    said: list[str] = []
    run = fit(tiny(epochs=2, batch=1), tmp_path, how=TrainingOptions(say=said.append))
    assert [line.partition(":")[0] for line in said if "the loss is stuck at 2.303, that of" in line] == named
    assert [row["epoch"] for row in run.history() if row.get("plateau")] == marked


@pytest.mark.parametrize(("right", "stuck"), [(1, True), (5, False)])
def test_a_network_that_knows_more_than_one_answer_is_not_stuck_whatever_its_loss(right: int, stuck: bool) -> None:
    images = stand_in(Shape((1, 2, 2), 10), 1000)
    tally = Tally()
    for _ in range(100):
        tally.add(2.3, images.constant_loss, right, 0.3, 10)
    assert tally.stuck(images) is stuck


def test_mmas_boundary_points_do_not_look_like_a_plateau() -> None:
    """Of two classes every boundary point has a cross-entropy of log 2, however well x is classified."""
    model = two_class_linear(torch.full((4,), 4.0), bias=-8.0)
    x, y = torch.tensor([0.1, 0.9]).view(2, 1, 1, 1).expand(2, 1, 2, 2), torch.tensor([0, 1])
    threat = Threat("linf", 0.3)
    terms = list(Mma()(model, x, y, threat, generator()))
    assert cross_entropy(terms[-1].logits, y).mean().item() == pytest.approx(math.log(2), abs=0.02)
    step = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), Mma(), x, y, threat, generator())
    assert step.cross_entropy == pytest.approx(cross_entropy(model(x), y).mean().item())


def test_the_plateau_of_uneven_classes_is_the_entropy_of_their_labels() -> None:
    y = torch.tensor([0] * 90 + [1] * 10)
    x = torch.zeros(100, 1, 2, 2)
    logits = torch.tensor([0.9, 0.1]).log().expand(100, 2)
    images = Images(x, y, ("a", "b"))
    assert images.constant_loss == pytest.approx(float(cross_entropy(logits, y).mean()))
    for loss, stuck in ((images.constant_loss, True), (math.log(2), True), (0.5, False)):
        tally = Tally()
        for _ in range(100):
            tally.add(loss, loss, 9, 0.3, 10)
        assert tally.stuck(images) is stuck


_initial_state = initial_state


def blank_state(*arguments: Any) -> Any:
    """A network with the same prediction for every image."""
    state = _initial_state(*arguments)
    for parameter in list(state.model.parameters())[-2:]:
        torch.nn.init.zeros_(parameter)
    return state


TRACES: dict[str, dict[str, object]] = {
    "standard": {"defense__name": "standard"},
    "pgd-at": {"defense__name": "pgd-at"},
    "fast": {"defense__name": "fast"},
    "trades l2": {"defense__name": "trades", "threat": "l2:1.0"},
    "mart": {"defense__name": "mart"},
    "mma": {"defense__name": "mma"},
    "entropy-sgd": {"defense__name": "pgd-at", "optimizer__name": "entropy-sgd"},
    "atent linf": {"defense__share": 0.6, "defense__project": "last", "defense__noise": 0.02},
    "atent l2": {
        "defense__share": 0.6,
        "defense__project": "never",
        "defense__pull": "auto",
        "defense__noise": 1e-3,
        "threat": "l2:1.0",
    },
}


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("trace", TRACES)
def test_losses_are_those_of_the_golden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str) -> None:
    """A change of these numbers is a change of the algorithm: CHANGELOG lists it under "Numbers changed".

    The first of two epochs; for MMA, which stores margins for the next epoch, and the cheapest both. In double
    precision: in single precision processors round differently, which a sign search turns into other steps.
    """
    epochs = 2 if trace in ("standard", "mma") else 1
    monkeypatch.setattr(State, "finished", lambda state, _: state.epoch >= epochs)
    run = fit(tiny(schedule__warmup=0, validation=5900, batch=25, **TRACES[trace]), tmp_path, how=QUIET)
    golden = json.loads(GOLDEN.read_text())[trace]
    assert [row["loss"] for row in run.history()] == pytest.approx(golden[:epochs], rel=1e-6)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shapes = {"cifar10": Shape((3, 32, 32), 10)}
    short: dict[str, float | str | None] = {"epochs": 1, "batch": 2, "validation": 2, "monitor.steps": 2}
    recipe = load_recipe(name)
    if recipe.defense.get("steps", 1) > 1:
        short["defense.steps"] = 2
    assert recipe.model in MODELS
    if recipe.model.startswith("wrn") and name != "cifar10-l2-mma":
        short["model"] = "resnet-20"  # one wide network is enough
    if recipe.weights:
        short["weights"] = None  # those of another run
    if recipe.defense.get("pull") == "auto":
        short["defense.reach"] = 2
    if recipe.defense.get("step") and recipe.defense.get("pull") == "auto":
        short["defense.step"] = recipe.make_threat().eps  # two steps of the recipe's size could not reach eps
    images = stand_in(shapes.get(recipe.data, Shape((1, 28, 28), 10)), 6)
    assert recipe.data in [*SOURCES, "images"]  # own-images' stand-in for a user's folder
    monkeypatch.setattr(atent.training.start, "open_data", lambda *_, **__: Published("mnist-small"))
    monkeypatch.setattr(Published, "images", lambda *_: images)
    recipe = load_recipe(name, short)
    run = fit(recipe, tmp_path, how=QUIET)
    (row,) = run.history()
    assert math.isfinite(row["loss"])
    assert run.best.exists()
