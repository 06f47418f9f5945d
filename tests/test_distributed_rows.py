"""Rows of attacks and certificates that several processes computed: those of one process, each once, in order."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atent.data.images import Images
from atent.evaluation.attack import attack_target
from atent.evaluation.bracket import bracket_target
from atent.evaluation.certify import certify_target, plan_certificates
from atent.evaluation.estimate import estimate_target, plan_phases
from atent.evaluation.sampling import Goal
from atent.evaluation.suites import choose_attacks
from atent.evaluation.target import Target
from atent.models.weights import weights_hash
from atent.network import predict
from atent.parallel.team import Team
from atent.smoothing.stopping import Smoothing
from atent.threat import Threat
from processes import together
from toys import generator, small_network

LINF = Threat("linf", 0.05)


def target(count: int, folder: Path) -> Target:
    """Images with the labels that a network predicts for them, so that every image is attacked."""
    network = small_network(dropout=0.0).eval()
    x = torch.rand(count, 1, 6, 6, generator=generator(4))
    images = Images(x, predict(network, x), ("0", "1", "2"))
    return Target(network, weights_hash(network), "small", images, "noise", None, folder)


def attacked(_: Team, folder: Path, name: str, save_images: bool) -> Path:
    found = target(70, folder)
    (plan,) = choose_attacks(name, ["steps=3"], None).plan(found, [LINF])
    return attack_target(found, plan, folder, batch=10, save_images=save_images)


def sampled(_: Team, folder: Path) -> Path:
    found = target(120, folder)
    (phases,) = plan_phases(choose_attacks("pgd", ["steps=5", "restarts=3"], None), found, [LINF])
    path = estimate_target(found, phases, Goal(within=8.0), folder, batch=10).path
    assert path is not None
    return path


def certified(_: Team, folder: Path) -> Path:
    found = target(9, folder)
    how, radii = plan_certificates(Smoothing(0.25, 100, 1000, 0.001), [0.1, 0.2], [], (1, 6, 6), False)
    return certify_target(found, how, radii, folder, batch=300)


def bracketed(team: Team, folder: Path) -> Path:
    settings: dict[str, Any] = {"name": "smooth-pgd", "steps": 2}
    attack = choose_attacks("smooth-pgd", ["steps=2"], None).one
    assert attack is not None
    return bracket_target(target(9, folder), certified(team, folder), attack, settings, draws=4, batch=300)


def lines(path: Path) -> list[str]:
    """The header and the rows, as they are in the file, without the costs, whose times and checksums differ."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if '"cost"' not in line]


def passes(path: Path) -> list[int]:
    costs = [json.loads(line)["cost"] for line in path.read_text(encoding="utf-8").splitlines() if '"cost"' in line]
    return [sum(cost[key] for cost in costs) for key in ("forward", "backward")]


WORK: dict[str, Callable[[Team, Path], Path]] = {
    "pgd": partial(attacked, name="pgd", save_images=True),
    "apgd": partial(attacked, name="apgd", save_images=False),
    "sample": sampled,
    "certify": certified,
    "bracket": bracketed,
}


def all_rows(team: Team, folder: Path) -> dict[str, Path]:
    return {name: work(team, folder / name) for name, work in WORK.items()}


def cut(path: Path) -> None:
    """Leave the first batch, as a kill does, and a part of a line."""
    text = path.read_text(encoding="utf-8").splitlines(keepends=True)
    end = next(k for k, line in enumerate(text) if '"cost"' in line)
    path.write_text("".join([*text[: end + 1], text[1][:9]]), encoding="utf-8")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], list[dict[str, Path]]]:
    """Of one process, and of each of three."""
    folder = tmp_path_factory.mktemp("rows")
    return all_rows(Team(), folder / "one"), together(all_rows, folder / "three", size=3)


@pytest.mark.parametrize("name", WORK)
def test_rows_are_those_of_one_process(rows: tuple[dict[str, Path], list[dict[str, Path]]], name: str) -> None:
    one, three = rows
    assert len(lines(one[name])) > 5
    for found in three:
        assert lines(found[name]) == lines(one[name])
        assert found[name].name == one[name].name
        assert name == "bracket" or passes(found[name]) == passes(one[name])


def test_saved_images_are_those_of_one_process(rows: tuple[dict[str, Path], list[dict[str, Path]]]) -> None:
    one, (three, *_) = rows
    with np.load(one["pgd"].with_suffix(".npz")) as ours, np.load(three["pgd"].with_suffix(".npz")) as theirs:
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert not list(three["pgd"].parent.glob("*.points"))


def test_another_number_of_processes_resumes_rows(rows: tuple[dict[str, Path], list[dict[str, Path]]]) -> None:
    """Two processes finish what one began, and one what three began."""
    one, (three, *_) = rows
    expected = {name: lines(path) for name, path in one.items()}
    for paths in (one, three):
        for path in paths.values():
            path.with_suffix(".npz").unlink(missing_ok=True)
            cut(path)
    again, same = together(all_rows, one["pgd"].parents[2])
    alone = all_rows(Team(), three["pgd"].parents[2])
    for paths in (again, same, alone):
        assert {name: lines(path) for name, path in paths.items()} == expected
        assert paths["pgd"].with_suffix(".npz").exists()
