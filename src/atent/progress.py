"""Progress of long work (a bar with rate and time left on a terminal, lines elsewhere), and stops by signals."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0


class Advance(Protocol):
    """Called with the number of units done and a short text to show."""

    def __call__(self, done: int, words: str = "") -> None: ...


@contextmanager
def progress(label: str, total: int, unit: str, done: int = 0, brief: bool = False) -> Iterator[Advance]:
    """Show the progress of `total` units of work on standard error; yields the function to call with the units done.

    `brief` work prints no last line: it often ends before a user would wait for it.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console, unit) as bar:
            task = bar.add_task(label, total=total, completed=done, words="", rate="")
            clock = _Clock(done, total)

            def advance(done: int, words: str = "") -> None:
                bar.update(task, completed=done, words=words, rate=f"{clock.rate(done):.1f} {unit}/s")

            yield advance
    else:
        yield _Lines(label, total, unit, done, brief)


def detail(text: str) -> None:
    """Show where a long unit of work is, such as "step 40/100, 57 images left"; without a progress nothing happens."""
    del text


def _bar(console: Console, unit: str) -> Progress:
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        unit,
        "{task.fields[rate]}",
        TimeRemainingColumn(),
    )
    made = [column if not isinstance(column, str) else TextColumn(column) for column in columns]
    return Progress(*made, TextColumn("left {task.fields[words]}"), console=console, speed_estimate_period=60)


class _Clock:
    """The rate since this process started; work done before a resume does not count."""

    def __init__(self, done: int, total: int) -> None:
        self.began, self.start, self.total = time.monotonic(), done, total

    def rate(self, done: int) -> float:
        return (done - self.start) / max(time.monotonic() - self.began, 1e-9)

    def left(self, done: int) -> str:
        rate = self.rate(done)
        seconds = int((self.total - done) / rate) if rate > 0 else 0
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class _Lines:
    def __init__(self, label: str, total: int, unit: str, done: int, brief: bool) -> None:
        self.label, self.total, self.unit, self.brief = label, total, unit, brief
        self.clock = _Clock(done, total)
        self.next = time.monotonic() + SECONDS_BETWEEN_LINES

    def __call__(self, done: int, words: str = "") -> None:
        if time.monotonic() < self.next and (self.brief or done < self.total):
            return
        self.next = time.monotonic() + SECONDS_BETWEEN_LINES
        speed = f"{self.clock.rate(done):.1f} {self.unit}/s, {self.clock.left(done)} left"
        print(
            f"{self.label}: {done}/{self.total} {self.unit}, {speed}{words and '  ' + words}",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list; SIGINT and SIGTERM are appended to it, so the caller can finish its batch before it stops.

    The second signal gets the previous handler and acts immediately.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def remember(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signature set by the signal module)
        asked.append(signum)
        restore()

    if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
        before |= {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        restore()
