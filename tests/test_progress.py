"""Progress: lines in time, one or two lines of a terminal at any width, silence in a notebook; where an attack is."""

import io
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from atent.attacks import make_attack
from atent.attacks.protocols import title_of
from atent.evaluation.suites import SUITES
from atent.progress import SECONDS_BETWEEN_LINES, detail, progress
from atent.smoothing.smoothed import Smoothed
from atent.threat import Threat
from toys import THREATS, generator, small_batch, small_network

TITLES = [
    *{title_of(make_attack(one)) for norms in SUITES.values() for attacks in norms.values() for one in attacks},
    "foolbox L2CarliniWagnerAttack (binary_search_steps 9, steps 10000, confidence 0.5)",
    "\u8bad\u7ec3" * 30,  # two columns each
    "not [bold]markup[/bold]",
]
DETAIL = "apgd-t, 212 images left, 1,900 passes"
LINF, L2 = THREATS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("atent.progress.time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands


def test_lines_come_in_time_though_no_unit_is_done(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """A quarter of an hour inside one batch, a report every .9 seconds."""
    with progress("AutoAttack linf:0.3", 500, "images"):
        for k in range(1, 1001):
            clock.now += 0.9
            detail(f"pass {k}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "AutoAttack linf:0.3: 0/500 images, - images/s, - left  pass 17"
    passes = [int(line.rpartition(" ")[2]) for line in lines]
    gaps = [0.9 * (after - before) for before, after in pairwise([0, *passes, 1000])]
    assert all(SECONDS_BETWEEN_LINES <= gap < SECONDS_BETWEEN_LINES + 0.9 for gap in gaps[:-1])
    assert gaps[-1] < SECONDS_BETWEEN_LINES + 0.9


def test_the_time_left_is_that_of_the_finished_units(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 images were done before a resume; then 200 take 800 s, so the last 700 take 2,800 s."""
    with progress("PGD", 1000, "images", done=100) as show:
        clock.now += 800
        show(300)
        for waited in (400, 2300, 200):
            clock.now += waited
            detail("step 3")
        clock.now += 50
        show(1000)
    assert capsys.readouterr().err.splitlines() == [
        "PGD: 300/1000 images, 0.25 images/s, 0:46:40 left",
        "PGD: 300/1000 images, 0.25 images/s, 0:40:00 left  step 3",
        "PGD: 300/1000 images, 0.25 images/s, 0:01:40 left  step 3",
        "PGD: 300/1000 images, 0.25 images/s, - left  step 3",
        "PGD: 1000/1000 images, 0.24 images/s, 0:00:00 left",
    ]


@pytest.mark.parametrize(("brief", "lines"), [(True, 0), (False, 1)])
def test_work_that_ends_early_prints_its_last_line_unless_brief(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], brief: bool, lines: int
) -> None:
    with progress("reading", 3, "images", brief=brief) as show:
        for done in (1, 2, 3):
            clock.now += 1
            show(done)
            detail("more")
    assert capsys.readouterr().err.count("\n") == lines


def test_a_detail_is_shown_by_the_innermost_progress_and_without_one_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atent.progress.SECONDS_BETWEEN_LINES", 0.0)

    def fail() -> None:
        with progress("inner", 2, "images"):
            detail("one")
            raise ZeroDivisionError

    detail("before")
    with progress("outer", 2, "batches"):
        with pytest.raises(ZeroDivisionError):
            fail()
        detail("two")
    detail("after")
    captured = capsys.readouterr()
    assert [re.sub(":.*left ", "", line) for line in captured.err.splitlines()] == ["inner one", "outer two"]
    assert captured.out == ""


def last_frame(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, width: int, title: str, words: str) -> str:
    """What a terminal of this width shows after 250 of 10,000 images and 900 seconds."""
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True)
    monkeypatch.setattr("atent.progress.Console", lambda **_: console)
    with progress(title, 10000, "images") as show:
        detail(DETAIL)
        clock.now += 900
        show(250)
        detail(words)
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", written.getvalue().rpartition("\r")[2]).strip("\n")


@pytest.mark.parametrize("words", ["", DETAIL])
@pytest.mark.parametrize("width", [30, 80, 120])
def test_a_terminal_shows_whole_lines(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, width: int, words: str
) -> None:
    for title in TITLES:
        label = f"{title} linf:8/255"
        lines = last_frame(clock, monkeypatch, width, label, words).split("\n")
        assert len(lines) <= 2
        assert all(cell_len(line) <= width for line in lines)
        assert lines[0].startswith(title[:4])
        if width >= 80:
            assert " 250/10000 images, " in lines[0]
            assert " 9:45:00 left" in lines[0]
            assert words in lines[-1]
            assert (label in lines[0]) == (cell_len(label) <= width - len(" 250/10000 images, 9:45:00 left"))


@pytest.mark.parametrize(("width", "bar", "count"), [(70, 0, 2), (80, 14, 2), (100, 34, 2), (120, 16, 1), (160, 40, 1)])
def test_the_bar_takes_the_room_that_is_left(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, width: int, bar: int, count: int
) -> None:
    frames = [last_frame(clock, monkeypatch, width, "AutoAttack linf:0.3", words) for words in ("", DETAIL)]
    assert [frame.count("\u2501") + frame.count("\u2500") for frame in frames] == [bar, bar]
    lines = frames[1].split("\n")
    assert len(lines) == count
    assert lines[-1].endswith(DETAIL)
    assert lines[0].startswith("AutoAttack linf:0.3 ")
    assert "0.28 images/s" in lines[0]
    assert lines[0].count("\u2501") == bar // 40  # 250 of 10,000


def test_finished_work_leaves_one_line(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    console = Console(file=written, width=80, force_terminal=True)
    monkeypatch.setattr("atent.progress.Console", lambda **_: console)
    with progress("strong linf:8/255", 10, "images") as show:
        detail(DETAIL)
        clock.now += 5
        show(10)
    last = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", written.getvalue().rpartition("\r")[2])
    assert last.strip("\n").endswith("10/10 images, 2.0 images/s, 0:00:00 left")
    assert "\n" not in last.strip("\n")


@pytest.mark.parametrize(
    ("settings", "threat", "first", "last"),
    [
        (
            {"name": "pgd", "steps": 3, "restarts": 2},
            LINF,
            "restart 1/2, step 1, 8 images left",
            "restart 2/2, step 3,",
        ),
        ({"name": "pgd", "steps": 3}, L2, "step 1, 8 images left", "step 3, 8 images left"),
        ({"name": "deepfool", "steps": 2}, L2, "DeepFool step 1/2, 8 images left", "DeepFool step "),
        ({"name": "cw-l2", "steps": 3, "searches": 2}, L2, "DeepFool step 1/50", "search 2/2, step 3/3"),
        ({"name": "cw-linf", "steps": 3, "searches": 2}, LINF, "search 1/2, step 1/3", "search 2/2, step "),
        ({"name": "smooth-pgd", "steps": 3}, L2, "step 1/3", "step 3/3"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_an_attack_reports_where_it_is(
    settings: dict[str, Any],
    threat: Threat,
    first: str,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("atent.progress.SECONDS_BETWEEN_LINES", 0.0)
    attack, smooth = make_attack(settings), settings["name"] == "smooth-pgd"
    x, _ = small_batch()
    y = small_network().eval()(x).argmax(1)

    def points() -> torch.Tensor:
        model = Smoothed(small_network(), 0.01, 4) if smooth else small_network()
        return attack(model, x, y, threat.scaled(1e-3), generator())  # nothing breaks, so every step is taken

    silent = points()
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
    with progress("attack", 8, "images"):
        assert torch.equal(points(), silent)
    details = [line.partition("left  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert details[0].startswith(first)
    assert details[-1].startswith(last)
