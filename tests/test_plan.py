"""`atent plan`: what it counts, against counts by hand and of real steps; what it measures; what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atent.planning.probe
from atent.attacks import Pgd
from atent.data.dataset import load
from atent.data.images import Images, epoch_batches
from atent.data.published import SOURCES
from atent.evaluation.attack import attack_batch
from atent.network import Passes, Shape, counted, predict
from atent.planning.accelerators import ACCELERATORS
from atent.planning.operations import Operations, count_operations
from atent.planning.passes import mean_cost
from atent.planning.plan import (
    Needs,
    Place,
    activation_bytes,
    certification_job,
    draws_of,
    evaluation_jobs,
    here,
    needs_of,
    on,
    probe_request,
)
from atent.planning.probe import Breaking, Probe, measure
from atent.planning.sizes import Sizes, find_sizes
from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing
from atent.training.step import train_step
from short_runs import tiny
from test_cli import assert_refused
from test_cli import atent as command
from toys import generator, small_batch, small_network, two_class_linear

DIGITS = Sizes(6000, 2000, Shape((1, 28, 28), 10))


@pytest.fixture(scope="module")
def needs() -> Needs:
    return needs_of(tiny(), DIGITS)


def test_operations_are_those_of_a_count_by_hand() -> None:
    """A 3 x 3 convolution of a 6 x 6 image into 4 channels of 4 x 4, and a layer from 64 to 3."""
    layers = 2 * (4 * 4 * 4 * 9) + 2 * (64 * 3)
    found = count_operations(small_network(), Shape((1, 6, 6), 3))
    assert found == Operations(forward=layers, backward=layers, to_weights=2 * layers)
    assert found.of(Passes(forward=12, backward=11, to_weights=1)) == (12 + 10 + 2) * layers


def test_activations_are_those_of_a_count_by_hand() -> None:
    """Kept for the backward pass: the image, for the first layer; the output of ReLU, for both others together."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    assert activation_bytes(network, Shape((1, 6, 6), 3)) == 4 * (36 + 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"defense__name": "atent"},
        {"defense__name": "atent", "defense__share": 0.5, "defense__steps": 3},
        {"defense__name": "trades"},
        {"defense__name": "standard"},
        {"defense__name": "trades", "awp": 0.01},
        {"optimizer": {"name": "entropy-sgd", "steps": 3}},
    ],
)
def test_passes_are_those_of_a_real_step(changes: dict[str, Any]) -> None:
    recipe, (x, y) = tiny(**changes), small_batch()
    defense, optimizer, _ = recipe.methods
    model = small_network()
    with counted(model) as passes:
        train_step(model, optimizer(model.parameters()), defense, x, y, recipe.threat, generator(), awp=recipe.awp)
    for key in ("forward", "backward", "to_weights"):
        assert mean_cost(recipe, lambda one, key=key: getattr(one, key)) * len(x) == getattr(passes, key)  # type: ignore[misc]


@pytest.mark.parametrize("validation", [0, 5800, 5744, 5743, 5999, "auto", 0.5])
def test_batches_are_those_of_an_epoch(validation: Any) -> None:
    recipe = tiny(validation=validation, batch=64)
    held = {"auto": 600, 0.5: 3000}.get(validation, validation)
    assert DIGITS.trained(recipe) == 6000 - held
    assert DIGITS.batches(recipe) == len(epoch_batches(6000 - held, 64, generator()))


def test_the_sizes_of_published_data_are_known_without_the_files(tmp_path: Path) -> None:
    assert find_sizes(tiny(), tmp_path, None, None, None) == DIGITS
    for split, count in zip(("train", "test"), SOURCES["mnist-small"].counts, strict=True):
        assert len(load("mnist-small", split)) == count  # type: ignore[arg-type]
    assert find_sizes(tiny(data="cifar10"), tmp_path, None, None, None).shape == Shape((3, 32, 32), 10)


def test_a_probe_gives_the_time_and_memory_of_this_machine(needs: Needs) -> None:
    """200 images in 4 batches of 3 s, then 20 images with 9 forward and 6 backward passes (APGD-2: 24 for 20 steps)."""
    recipe, probe = tiny(epochs=3), Probe(50, 3.0, 0.1, 500_000_000, real=True)
    assert (needs.batches, needs.evaluation.images) == (4, 20)
    evaluation = 20 * needs.evaluation.passes.work * 0.1
    place = here(needs, recipe, probe, [])
    assert place.epoch == pytest.approx(4 * 3.0 + evaluation)
    assert place.total == pytest.approx(3 * place.epoch)
    assert place.memory == 500_000_000
    assert here(needs, tiny(minutes=5), probe, []).total == 300


def test_a_plain_probe_of_few_images_is_scaled_by_passes_and_activations(needs: Needs) -> None:
    plain = Probe(2, 0.6, 99.0, 100_000_000, real=True, plain=True)
    place = here(needs, tiny(), plain, [])
    work = 4 * 50 * needs.step.work + 20 * needs.evaluation.passes.work  # 2 images, 3 passes in .6 s
    assert place.epoch == pytest.approx(0.1 * work)
    assert place.memory == 100_000_000 + 48 * needs.each
    two = here(needs_of(tiny(batch=2), DIGITS), tiny(batch=2), plain, [])  # a recipe with as many images in a batch
    assert two.epoch == pytest.approx(place.epoch)


def test_with_a_budget_accelerators_train_as_long_as_it_allows(needs: Needs) -> None:
    (single, half), (longer, _) = (
        list(on(needs, recipe, ACCELERATORS["a100"], 1, 0.25, [])) for recipe in (tiny(minutes=5), tiny(epochs=3))
    )
    assert (single.total, half.total) == (300, 300)
    assert longer.epochs == pytest.approx(3)
    assert single.epoch == pytest.approx(longer.total / 3)
    assert single.epochs == pytest.approx(300 / single.epoch)
    assert half.epochs == pytest.approx(single.epochs * 312 / 19.5)
    assert single.watt_hours == pytest.approx(400 / 12)


def test_an_accelerator_is_its_published_peak_times_the_efficiency(needs: Needs) -> None:
    a100 = ACCELERATORS["a100"]
    single, half = on(needs, tiny(), a100, devices=4, efficiency=0.25, jobs=[])
    assert single.total == pytest.approx(needs.total / (19.5e12 * 0.25 * 4))
    assert half.total == pytest.approx(single.total * 19.5 / 312)
    assert single.watt_hours == pytest.approx(single.total / 3600 * 400 * 4)
    assert single.memory == needs.fixed + needs.each * 50 / 4
    assert single.fits
    assert not next(iter(on(replace(needs, fixed=10**12), tiny(), a100, 1, 0.3, []))).fits
    assert Place("x", 0, 3000, 0, jobs=(600.0,)).priced(2.0, 4).price == pytest.approx(8.0)


def test_the_plan_of_a_suite_counts_its_attacks(needs: Needs) -> None:
    (whole,) = evaluation_jobs(needs, tiny(), "quick", None)
    assert (whole.images, whole.passes.backward) == (2000, 2 * 20)  # PGD-20 with two losses
    first, sample = evaluation_jobs(needs, tiny(), "strong", 1.0)
    assert (first.images, first.passes.backward) == (2000, 41)  # APGD-40
    assert 100 <= sample.images <= 1000
    assert evaluation_jobs(needs, tiny(), "strong", 5.0)[1].images < sample.images


def test_the_plan_of_a_certification_follows_the_stopping_rule(needs: Needs) -> None:
    """For a network that always agrees, the planned draws are those that its certificate takes."""
    how = Smoothing(0.25, n=1000, radii=(0.0, 0.25, 0.5))
    sure = Smoothed(two_class_linear(torch.zeros(36), bias=9.0), 0.25)
    (found,) = sure.certify(torch.full((1, 1, 6, 6), 0.5), how)
    assert draws_of(how, 1.0) + how.n0 == found.draws
    assert draws_of(how, 0.7) < draws_of(how, 0.5) <= how.n  # at 1/2 radius 0 is undecided
    job = certification_job(needs, 0.25, 1000)
    assert how.n0 + draws_of(how, 1.0) <= job.passes.forward <= 1100


@pytest.mark.parametrize("real", [True, False])
def test_a_probe_trains_some_batches(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: Needs) -> None:
    monkeypatch.setattr(atent.planning.probe, "MOST", 3)
    asked = probe_request(needs, tiny() if real else tiny(data="mnist"), tmp_path, "cpu", 1)
    found = measure(json.loads(json.dumps(asked)))
    assert (found.batch, found.real) == (50, real)
    assert 0 < found.pass_seconds < found.seconds
    assert found.peak > 50_000_000
    assert not list(tmp_path.iterdir())


def test_later_evaluations_lose_images_at_every_step() -> None:
    """Of 120 images two leave at each of three steps."""
    network, (x, _) = small_network(dropout=0.0), small_batch(120)
    breaking, left = Breaking(network).eval(), []
    breaking.network.register_forward_pre_hook(lambda _, given: left.append(len(given[0])))
    images = Images(x, predict(network.eval(), x), ("a", "b", "c"))
    attack_batch(breaking, images, slice(120), Pgd(steps=3), "linf:1e-6")
    assert left[-4:] == [120, 118, 116, 120]  # at last the points of all


def test_a_batch_that_takes_too_long_is_probed_without_its_search(needs: Needs) -> None:
    heavy = replace(needs, operations=Operations(10**10, 10**10, 2 * 10**10))
    for one, batch, defense in ((needs, 50, "atent"), (heavy, 2, "standard")):
        recipe = probe_request(one, tiny(), None, "cpu", None)["recipe"]
        assert (recipe["batch"], recipe["defense"]["name"]) == (batch, defense)


def test_the_command_prints_a_plan_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "demo", "--no-probe", "--on", "a100", "--devices", 2, "--price", 3, "--certify", 0.25]
    assert command(*arguments, "--n", 1000) == 0
    printed = capsys.readouterr().out
    for words in (
        "312,202",
        "5,500 in 86 batches of 64, 9 epochs",
        "A100 SXM, half",
        "30 % of the published dense peak",
    ):
        assert words in printed
    assert command(*arguments, "--n", 1000, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 312_202
    assert [place["name"] for place in found["places"]] == ["A100 SXM, float32", "A100 SXM, half"]
    assert command(*arguments, "--n", 1000, "--set", "minutes=5") == 0
    printed = capsys.readouterr().out
    assert "passes in an epoch" in printed
    assert "in total" not in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--on", "a10"], ["accelerator", "a10", "a100"]),
        (["--price", "-1"], ["--price -1", "0 or more"]),
        (["--price", "nan"], ["--price nan"]),
        (["--devices", "0"], ["--devices 0", "1 or more"]),
        (["--efficiency", "30"], ["--efficiency 30", "at most 1"]),
        (["--within", "1"], ["--within 1 without --suite"]),
        (["--suite", "strongest"], ["suite", "strongest", "strong"]),
        (["--images", "10"], ["--images, --shape and --classes", "all three"]),
        (["--images", "10", "--shape", "224", "--classes", "3"], ["--shape 224", "3x224x224"]),
        (["--certify", "-1"], ["sigma -1"]),
        (["--certify", ".25", "--n", "0"], ["--n 0"]),
        (["--set", "epochs=0"], ["epochs = 0"]),
        (["--model", "torchvision:resnet50"], ["torchvision"]),
    ],
)
def test_a_bad_question_is_answered_in_one_line(
    arguments: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, words, "plan", "demo", "--no-probe", *arguments)


def test_images_that_are_not_here_are_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, ["data set", "images", "--shape 3x224x224"], "plan", "own-images", "--no-probe")
    stated = ["--images", 1000, "--shape", "3x64x64", "--classes", 7]
    assert command("plan", "own-images", "--no-probe", *stated) == 0
    assert "900 in 15 batches of 64" in capsys.readouterr().out
