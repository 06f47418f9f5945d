"""Attacks of other libraries: inside the threat or evaluated by their size, seeded, and the network as it was."""

import contextlib
import copy
import logging
import random
import re
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atent.attacks import make_attack
from atent.attacks.external.autoattack import parts
from atent.attacks.external.libraries import seeded
from atent.attacks.protocols import title_of
from atent.errors import UserError
from atent.evaluation.attack import attack_batch
from atent.inputs import check_points
from atent.models import Shape
from atent.progress import progress, stop_requests
from atent.threat import Threat
from toys import THREATS, generator, small_batch, small_network, stand_in, two_class_linear

BOUNDED: list[dict[str, Any]] = [
    {"name": "foolbox:LinfPGD", "steps": 5},
    {"name": "foolbox:L2PGD", "steps": 5},
    {"name": "art:ProjectedGradientDescent", "max_iter": 3, "num_random_init": 1},
    {"name": "autoattack", "steps": 3, "queries": 10},
]
MINIMAL: list[dict[str, Any]] = [
    {"name": "foolbox:L2CarliniWagnerAttack", "steps": 5, "binary_search_steps": 3},
    {"name": "foolbox:LinfDeepFoolAttack", "steps": 5},
    {"name": "art:DeepFool", "max_iter": 3},
]
WEAK = 0.3  # of a threat: some images break, not all
engines = pytest.mark.parametrize("settings", BOUNDED + MINIMAL, ids=lambda settings: settings["name"])
threats = pytest.mark.parametrize("threat", THREATS, ids=str)


def right_batch(model: nn.Module) -> tuple[Tensor, Tensor]:
    x, _ = small_batch()
    return x, copy.deepcopy(model).eval()(x).argmax(1)


@threats
@engines
def test_points_are_inside_seeded_and_the_model_is_untouched(settings: dict[str, Any], threat: Threat) -> None:
    model = small_network().train()
    x, y = right_batch(model)
    y[0] = (y[0] + 1) % 3  # wrong from the start: comes back as it is
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    dice = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())  # type: ignore[index]
    attack = make_attack(settings)
    x_adv, again = (attack(model, x, y, threat, generator()) for _ in range(2))
    check_points(x_adv, x, threat, "engine")
    assert torch.equal(x_adv, again)
    assert torch.equal(x_adv[0], x[0])
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(p.requires_grad and p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert random.getstate() == dice[0]
    assert (np.random.get_state()[1] == dice[1]).all()  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), dice[2])
    assert torch.equal(attack(model, x, y, Threat(threat.norm, 0.0), generator()), x)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "foolbox:LinfPGD", "random_start": False},
        {"name": "foolbox:LinfDeepFoolAttack"},
        {"name": "art:ProjectedGradientDescent", "max_iter": 20},
        {"name": "autoattack", "steps": 20, "queries": 20},
    ],
    ids=lambda settings: settings["name"],
)
def test_a_linear_network_falls_within_its_distance_and_not_before(settings: dict[str, Any]) -> None:
    weights = torch.randn(25, generator=generator(6))
    model, x = two_class_linear(weights, 0.5), torch.full((1, 1, 5, 5), 0.5)
    logits = model(x).detach()
    y, distance = logits.argmax(1), float((logits[0, 1] - logits[0, 0]).abs() / weights.norm(p=1))
    broken = [
        bool(model(make_attack(settings)(model, x, y, Threat("linf", k * distance), generator())).argmax(1) != y)
        for k in (1.1, 0.9)
    ]
    assert broken == [True, False]


@pytest.mark.filterwarnings("ignore::atent.errors.ThreatWarning")  # the whole box on purpose
def test_a_minimal_engine_is_evaluated_by_its_distance_in_the_threats_norm() -> None:
    images = stand_in(Shape((1, 6, 6), 3), 20)
    attack = make_attack(MINIMAL[0])
    far, near = (
        attack_batch(small_network(), images, slice(0, 20), attack, Threat("linf", eps)).rows for eps in (1.0, 1e-4)
    )
    found = [row for row in far if row["clean"] == row["label"]]
    assert found
    for small, large in zip(near, far, strict=True):
        assert small["distance"] == large["distance"]
        if large["clean"] == large["label"] and large["distance"] is not None:
            assert not large["robust"]
            assert small["robust"] == (large["distance"] > 1e-4)


def test_an_engine_of_another_norm_counts_only_within_the_radius() -> None:
    model = small_network().eval()
    x, y = right_batch(model)
    linf = make_attack({"name": "foolbox:LinfPGD", "steps": 5})
    assert torch.equal(linf(model, x, y, Threat("l2", 0.5), generator()), x)  # .5 in linf is up to 3 in l2


def test_settings_are_written_out_with_their_defaults() -> None:
    attack = make_attack({"name": "foolbox:LinfPGD", "steps": 5})
    assert title_of(attack) == "foolbox LinfPGD (steps 5)"
    assert attack.settings["random_start"] is True  # type: ignore[attr-defined]
    assert attack.settings["steps"] == 5  # type: ignore[attr-defined]


def test_autoattack_leaves_out_what_few_classes_do_not_define(capsys: pytest.CaptureFixture[str]) -> None:
    parts.cache_clear()
    assert parts("standard", 10) == ("apgd-ce", "apgd-t", "fab-t", "square")
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert parts("standard", 3) == ("apgd-ce", "apgd-dlr", "fab-t", "square")
    assert capsys.readouterr().err.count("\n") == 1
    assert parts("standard", 2) == ("apgd-ce", "fab-t", "square")


def library_points(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, steps: int, queries: int) -> Tensor:
    """What pyautoattack returns when it is called as its own documentation does."""
    seed = int(torch.randint(2**31, (), generator=generator()))
    norm: Any = {"linf": "Linf", "l2": "L2"}[threat.norm]
    suite = pytest.importorskip("pyautoattack").AutoAttack(model, norm=norm, eps=threat.eps, seed=seed)
    suite.apgd.n_iter = suite.apgd_targeted.n_iter = suite.fab.n_iter = steps
    suite.square.n_queries = queries
    points: Tensor = suite.run_standard_evaluation(x, y, batch_size=len(x))[0]
    return points


@threats
def test_autoattack_is_the_librarys_and_reports_its_parts(
    threat: Threat,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("atent.progress.SECONDS_BETWEEN_LINES", 0.0)
    model, log = small_network(10).eval(), logging.getLogger("auto-attack")
    x, y = right_batch(model)
    weak, before = threat.scaled(WEAK), (log.level, log.disabled, [*log.filters], [*log.handlers])
    attack = make_attack({"name": "autoattack", "steps": 3, "queries": 10})
    with progress("AutoAttack", 8, "images"):
        points = attack(model, x, y, weak, generator())
    assert (log.level, log.disabled, log.filters, log.handlers) == before
    assert caplog.records == []
    said = capsys.readouterr().err
    reports = re.findall(r"- left  (\S+), (\d) images left, (\d+) passes\n", said)
    parts_met, images, passes = zip(*reports, strict=True)
    assert len(reports) == said.count("\n")
    assert [*dict.fromkeys(parts_met)] == ["checks", *parts("standard", 10)]
    assert [*map(int, passes)] == [*range(1, len(passes) + 1)]
    plain = library_points(model, x, y, weak, steps=3, queries=10)
    assert torch.equal(points, plain)
    assert (int(images[0]), int(images[-1])) == (8, int((model(plain).argmax(1) == y).sum()))
    assert 0 < int(images[-1]) < 8


@pytest.mark.parametrize("settings", [BOUNDED[0], BOUNDED[2]], ids=lambda settings: settings["name"])
def test_an_engine_reports_its_passes(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atent.progress.SECONDS_BETWEEN_LINES", 0.0)
    model, passes = small_network(), []
    x, y = right_batch(model)
    with model.register_forward_hook(lambda *_: passes.append(1)), progress("attack", 8, "images"):
        make_attack(settings)(model, x, y, THREATS[0], generator())
    assert re.findall(r"- left  (\d+) passes\n", capsys.readouterr().err) == [*map(str, range(1, len(passes) + 1))]


@pytest.mark.parametrize("signals", [(20,), (20, 30)], ids=["one", "two"])
def test_the_first_signal_lets_autoattack_finish_and_the_second_does_not(signals: tuple[int, ...]) -> None:
    model, passes = small_network(4).eval(), 0
    x, y = right_batch(model)
    attack = make_attack({"name": "autoattack", "steps": 2, "queries": 5})

    def interrupt(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes in signals:
            signal.raise_signal(signal.SIGINT)

    stopped = pytest.raises(KeyboardInterrupt) if len(signals) == 2 else contextlib.nullcontext()
    with stop_requests() as stop, progress("AutoAttack", 8, "images"), model.register_forward_hook(interrupt), stopped:
        attack(model, x, y, THREATS[0].scaled(WEAK), generator())
    assert stop == [signal.SIGINT]
    assert (passes == 30) == (len(signals) == 2)
    assert passes >= 30


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
@threats
def test_autoattack_runs_on_two_classes_and_three_channels(version: str, threat: Threat) -> None:
    attack = make_attack({"name": "autoattack", "version": version, "steps": 2, "queries": 5})
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(4, 3, 6, 6, generator=generator()).to(memory_format=torch.channels_last)
    tiny = threat.scaled(1e-3)  # nothing breaks, so every part runs
    check_points(attack(model, x, model(x).argmax(1), tiny, generator()), x, tiny, "autoattack")


def test_a_failing_engine_is_one_line_and_gives_the_model_back() -> None:
    model = small_network().train()
    x, y = right_batch(model)
    broken = make_attack({"name": "foolbox:LinfPGD", "steps": "many"})
    with pytest.raises(UserError, match=r"attack foolbox:LinfPGD failed: TypeError") as caught:
        broken(model, x, y, THREATS[0], generator())
    assert "\n" not in str(caught.value)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "foolbox:LinfPGDD"}, ["LinfPGDD", "LinfPGD,", "L2CarliniWagnerAttack"]),
        ({"name": "foolbox:Attack"}, ["unknown foolbox attack 'Attack'"]),
        ({"name": "art:Nothing"}, ["Nothing", "CarliniLInfMethod"]),
        ({"name": "foolbox:LinfPGD", "stepz": 3}, ["stepz", "steps", "foolbox:LinfPGD"]),
        ({"name": "art:ProjectedGradientDescent", "eps": 3}, ["eps", "max_iter"]),
        ({"name": "autoattack", "version": "weak"}, ["weak", "standard"]),
    ],
    ids=str,
)
def test_mistakes_name_what_is_known(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        make_attack(settings)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package", "module"),
    [
        ("foolbox:LinfPGD", "foolbox", "foolbox"),
        ("art:DeepFool", "adversarial-robustness-toolbox", "art"),
        ("autoattack", "pyautoattack", "pyautoattack"),
    ],
)
def test_a_missing_library_says_how_to_install_it(
    name: str, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(wanted: str, *_: object) -> None:
        raise ModuleNotFoundError(f"No module named {wanted!r}", name=module)

    monkeypatch.setattr("atent.attacks.external.libraries.importlib.import_module", absent)
    with pytest.raises(UserError, match=rf"(^|: ){package} is not installed; pip install 'atent\[attacks\]'$"):
        make_attack({"name": name})


def test_the_seed_is_the_generators() -> None:
    with seeded(generator(1)) as first, seeded(generator(1)) as again, seeded(generator(2)) as other:
        assert first == again != other


@engines
def test_wrong_input_gets_one_sentence(settings: dict[str, Any]) -> None:
    attack: Any = make_attack(settings)
    model = small_network()
    x, y = right_batch(model)
    for call in (attack, getattr(attack, "nearest", attack)):
        for images, labels, threat, sentence in (
            (2 * x - 1, y, "l2:0.5", r"allowed: pixels in \[0, 1\]; standardize"),
            (x, y + 3, "l2:0.5", "for a network of 3 classes"),
            (x[:, 0], y, "l2:0.5", "channels"),
            (x, y, "l3:0.5", "allowed: linf, l2"),
        ):
            with pytest.raises(UserError, match=sentence) as caught:
                call(model, images, labels, threat, generator())
            assert "\n" not in str(caught.value)
