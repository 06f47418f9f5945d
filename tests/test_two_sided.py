"""Two-sided accuracy of smoothed networks: the test of a point, linear networks with known radii, rows, the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor

from atent.attacks import Attack, CwL2, Pgd, SmoothPgd
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.bracket import bracket_target, find_broken
from atent.evaluation.certify import certify_target
from atent.evaluation.target import Target
from atent.report.figures import PALE
from atent.smoothing.rival import RivalTest
from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing
from atent.storage.brackets import Bracket, BracketRow, PointRow, brackets, read_bracket, smallest_broken
from atent.storage.certificates import Certified, CertifiedRow
from atent.storage.row_format import Cost
from test_certify_command import COMMON, LINEAR, networks, rows_of  # noqa: F401 (a fixture)
from test_cli import assert_refused, atent
from toys import generator, two_class_linear

SIGMA, SIDE = 0.2, 4
WEIGHTS = torch.randn(SIDE * SIDE, generator=generator(5))
BIAS = -0.5 * float(WEIGHTS.sum())  # the plane goes through the grey image
NETWORK = two_class_linear(WEIGHTS, BIAS)


def rejected(how: Smoothing, before: list[int], both: int, label: int) -> bool:
    test = RivalTest(how)
    test.both = list(before)
    test.look(both - label, label)
    return test.rejected


@pytest.mark.parametrize("n", [10, 41, 300])
@pytest.mark.parametrize("alpha", [0.2, 0.001])
def test_one_look_is_the_exact_binomial_test(n: int, alpha: float) -> None:
    """The largest set of low counts whose binomial probability at 1/2 is at most alpha, given the draws of the two."""
    for both in {0, 1, n // 2, n}:
        found = [rejected(Smoothing(SIGMA, n=n, alpha=alpha), [], both, label) for label in range(both + 1)]
        assert found == [stats.binom.cdf(label, both, 0.5) <= alpha for label in range(both + 1)]


@pytest.mark.parametrize("others", [0.0, 0.3, 0.9])
def test_early_looks_reject_with_probability_at_most_alpha(others: float) -> None:
    """The label and the rival are equally likely, other classes have this share: sums over all paths of counts."""
    how = Smoothing(SIGMA, n=300, alpha=0.05, radii=(0.0,))
    assert how.looks == [100, 200, 300]
    both = np.random.default_rng(0).binomial(100, 1 - others, 3).cumsum().tolist()
    alive, total = np.ones(1), 0.0
    for k, more in enumerate(np.diff([0, *both])):
        alive = np.convolve(alive, stats.binom.pmf(np.arange(more + 1), more, 0.5))
        low = np.array([rejected(how, both[:k], both[k], label) for label in range(both[k] + 1)])
        total += float(alive[low].sum())
        alive[low] = 0
    assert 0.5 * how.alpha < total <= how.alpha


def at_distance(distances: Tensor) -> Tensor:
    """Images at this signed distance from the plane of NETWORK, on the side of class 1 if positive."""
    beside = 0.05 * torch.randn(len(distances), SIDE * SIDE, generator=generator(6))
    unit = WEIGHTS / WEIGHTS.norm()
    beside -= (beside @ unit)[:, None] * unit
    x: Tensor = 0.5 + beside + distances[:, None] * unit
    return x.view(-1, 1, SIDE, SIDE)


@pytest.mark.parametrize("how", [Smoothing(SIGMA, n=5000), Smoothing(SIGMA, n=5000, radii=(0.0,))], ids=["n", "early"])
def test_linear_networks_are_broken_shortly_above_their_exact_radius(how: Smoothing) -> None:
    for distance in (0.2, 0.35):
        x, y = at_distance(torch.full((5,), distance)), torch.ones(5, dtype=torch.int64)
        radii = [0.0, 0.9 * distance, 1.1 * distance]
        for tested in find_broken(NETWORK, x, y, radii, how, SmoothPgd(steps=3, reach=30.0), draws=8):
            assert [one.radius for one in tested] == radii[:0:-1]  # radius 0 is not tried after a failure
            assert [one.broken for one in tested] == [True, False]
            assert tested[0].size == pytest.approx(radii[2], abs=1e-6)
            assert tested[0].rival == 0
        proven = Smoothed(NETWORK, SIGMA).certify(x, Smoothing(SIGMA, n=9000, radii=tuple(radii)), y=y)
        assert {one.radius for one in proven} == {radii[1]}


@pytest.mark.parametrize("early", [False, True])
def test_images_on_the_decision_boundary_are_broken_with_probability_at_most_alpha(early: bool) -> None:
    """There both classes are equally likely, so either prediction of the smoothed network is just not wrong."""
    count, how = 200, Smoothing(SIGMA, n=300, alpha=0.1, radii=(0.0,) if early else None)
    x, y = at_distance(torch.zeros(count)), torch.arange(count) % 2
    broken = sum(tested[0].broken for tested in find_broken(NETWORK, x, y, [0.0], how, SmoothPgd()))
    assert 0 < broken <= stats.binom.ppf(0.999, count, how.alpha)


@pytest.mark.parametrize("attack", [SmoothPgd(steps=3), Pgd(steps=3), CwL2(steps=30, searches=2)], ids=str)
def test_a_misclassified_image_is_broken_at_radius_0(attack: Attack) -> None:
    x, y = at_distance(torch.tensor([-0.1, -0.3])), torch.ones(2, dtype=torch.int64)
    how = Smoothing(SIGMA, n=1000, radii=(0.0,))
    for radii in ([0.0], [0.0, 0.1, 0.3]):
        for tested in find_broken(NETWORK, x, y, radii, how, attack, draws=16):
            assert tested[-1].broken
            assert tested[-1].size == 0
    (tested,) = find_broken(NETWORK, x[:1], 0 * y[:1], [0.0], how, attack)
    assert [(one.broken, one.size, one.counts) for one in tested] == [(False, 0, {})]


def test_an_image_does_not_depend_on_others_or_on_the_batch() -> None:
    x, y = at_distance(torch.linspace(-0.2, 0.4, 6)), torch.ones(6, dtype=torch.int64)
    how = Smoothing(SIGMA, n=2000, radii=(0.0,))

    def find(count: int = 6, **changed: Any) -> list[Any]:
        radii = [0.0, 0.1, 0.2]
        return find_broken(NETWORK, x[:count], y[:count], radii, how, SmoothPgd(steps=3), draws=8, **changed)

    whole = find()
    assert find(3) == whole[:3]
    assert find(batch=100) == whole
    assert find(seed=1) != whole


COUNT, RADII = 15, [(0.0, ""), (0.1, ""), (0.2, ""), (0.3, "")]
DISTANCES = torch.linspace(-0.1, 0.45, COUNT)
HOW = Smoothing(SIGMA, n=1000, radii=(0.0, 0.1, 0.2, 0.3))


def target() -> Target:
    pixels = (255 * at_distance(DISTANCES)).round().to(torch.uint8)
    images = Images(pixels, torch.ones(COUNT, dtype=torch.int64), ("no", "yes"))
    return Target(NETWORK, "abc", "toy", images, "toy", None, Path("never"))


def run(folder: Path, batch: int = 500) -> Path:
    certificates = certify_target(target(), HOW, RADII, folder, batch=batch)
    attack = SmoothPgd(steps=4)
    return bracket_target(target(), certificates, attack, {"name": "smooth-pgd", "steps": 4}, draws=16, batch=batch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole"))


def test_the_bracket_contains_the_exact_robust_accuracy(whole: Path) -> None:
    found = read_bracket(whole)
    x, _ = target().images.batch(slice(None), "cpu")
    distances = ((x.flatten(1) @ WEIGHTS + BIAS) / WEIGHTS.norm()).tolist()
    for radius in found.radii:
        truth = sum(distance > radius for distance in distances) / COUNT
        shares = found.shares(radius)
        assert shares.certified.value <= truth <= shares.unbroken.value
        assert shares.unbroken.value == pytest.approx(1 - shares.broken.value)
        assert shares.open.value == pytest.approx(1 - shares.certified.value - shares.broken.value)
        assert shares.open.value <= 0.25
        for row, distance in zip(found.rows, distances, strict=True):
            smallest = smallest_broken(row, radius)
            assert smallest is None or max(0, distance) <= smallest <= radius + 1e-6
            assert smallest is not None or distance >= radius - 0.15
    assert found.overlaps == 0
    assert found.expected_overlaps == 2 * 0.001 * COUNT
    assert found.cost.forward >= sum(row["draws"] for row in found.rows)
    with Image.open(found.path.with_suffix(".png")) as picture:
        assert PALE in [color for _, color in picture.getcolors(10_000) or []]  # the band


@pytest.mark.parametrize("kept", [1, 9])
def test_an_interrupted_attack_ends_with_the_same_rows(kept: int, whole: Path, tmp_path: Path) -> None:
    (proven,) = (whole.parents[1] / "certify").glob("*.jsonl")
    lines = whole.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut" / "bracket" / whole.name
    for file, content in (
        (cut, "".join(lines[:kept]) + lines[kept][:5]),
        (cut.parents[1] / "certify" / proven.name, ""),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(content or proven.read_text())
    assert run(tmp_path / "cut", batch=100) == cut
    assert rows_of(cut) == rows_of(whole)
    before = cut.read_bytes()
    run(tmp_path / "cut")  # finished: nothing is done again
    assert cut.read_bytes() == before


def test_overlaps_are_images_certified_and_broken_at_one_radius() -> None:
    header: dict[str, Any] = {"alpha": 0.01, "radii": [[0.0, ""], [0.5, ""], [1.0, ""]]}

    def proof(radius: float, prediction: int = 1) -> CertifiedRow:
        return CertifiedRow(index=0, label=1, prediction=prediction, radius=radius, top=1, counts={}, draws=1)

    def row(*sizes: float) -> BracketRow:
        tested = [PointRow(radius=1.0, size=size, rival=0, counts={}, broken=True) for size in sizes]
        return BracketRow(index=0, label=1, tested=tested, draws=1)

    proven = [proof(1.0), proof(0.5), proof(0.5), proof(1.0, prediction=0), proof(1.0)]
    rows = [row(0.4), row(0.8), row(0.2), row(0.0), row()]
    one = Bracket(Certified("", Path(), header, proven, Cost(), True), Path(), header, rows, Cost(), True)
    assert one.overlaps == 2  # the first and the third: certified at .5, broken at .4 and .2
    assert one.expected_overlaps == pytest.approx(0.1)
    assert [round(5 * share.value) for share in one.shares(0.5)] == [4, 0, 3, 2]
    assert [round(5 * share.value) for share in one.shares(1.0)] == [2, 0, 4, 1]


def test_certificates_of_another_network_are_refused(tmp_path: Path) -> None:
    certificates = certify_target(target(), HOW, RADII, tmp_path)
    other = Target(NETWORK, "def", "toy", target().images, "toy", None, Path("never"))
    with pytest.raises(UserError, match=r"weights abc.*allowed: those of the target, weights def"):
        bracket_target(other, certificates, SmoothPgd(), {"name": "smooth-pgd"})


def test_the_command_shows_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*LINEAR, "--sigma", 0.1, "--n", 300, "--radii", "0,.05", "--every", 7, "--examples", 6]
    assert atent("certify", *asked, "--out", tmp_path / "plain") == 0
    (plain,) = (tmp_path / "plain" / "certify").glob("*.jsonl")
    capsys.readouterr()
    attacked = ["--attack", "smooth-pgd", "--set", "steps=2", "--draws", 4, "--out", tmp_path / "out"]
    assert atent("certify", *asked, *attacked) == 0
    (one,) = brackets(tmp_path / "out")
    assert rows_of(one.certified.path) == rows_of(plain)  # certificates are the same with and without an attack
    assert [row["index"] for row in one.rows] == list(range(0, 42, 7))
    assert one.header["attack"]["steps"] == 2
    for shown in (
        capsys.readouterr().out,
        _shown(tmp_path / "out", capsys),
        _shown(tmp_path / "out", capsys, "--markdown"),
    ):
        certain, unbroken = one.shares(0.05).certified, one.shares(0.05).unbroken
        assert f"{100 * certain.value:.2f} to {100 * unbroken.value:.2f}" in shown
        assert "certified and broken at one radius: 0 of 6 images; at most 0.012 expected" in shown
    one.certified.path.unlink()
    assert brackets(tmp_path / "out") == []
    assert "cannot read" in capsys.readouterr().err


def _shown(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert atent("show", folder, *options) == 0
    return capsys.readouterr().out


SMOOTH = ["--sigma", ".5", "--n", "100"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*LINEAR, *SMOOTH, "--set", "steps=5"], ["--set steps=5 without --attack", "--attack smooth-pgd"]),
        ([*LINEAR, *SMOOTH, "--draws", "5"], ["--draws 5 without --attack"]),
        ([*LINEAR, *SMOOTH, "--attack", "cw-linf"], ["cw-linf", "l2", "allowed: linf threats"]),
        ([*LINEAR, *SMOOTH, "--attack", "smooth-pdg"], ["smooth-pdg", "smooth-pgd"]),
        ([*LINEAR, *SMOOTH, "--attack", "smooth-pgd", "--set", "steps=0"], ["steps", "0"]),
        ([*LINEAR, *SMOOTH, "--attack", "smooth-pgd", "--set", "loss=margin"], ["loss"]),
        (["smooth_networks:shaky", *COMMON, *SMOOTH, "--attack", "smooth-pgd"], ["two passes", "randomized"]),
        (["smooth_networks:smoothed", *COMMON, *SMOOTH, "--attack", "smooth-pgd"], ["smoothed already"]),
    ],
)
def test_mistakes_get_one_clear_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, words, "certify", *arguments)
