"""Lines for the user, progress of long work (a bar on a terminal, lines elsewhere), and stops by signals."""

import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from atent.errors import Interrupted, one_line

SECONDS_BETWEEN_LINES = 15.0
BAR_WIDTHS = (10, 40)
LABEL_WIDTH = 10  # kept of a label, however narrow the terminal


def say(line: str, file: TextIO | None = None, indent: int = 2) -> None:
    """Print a line, by default on standard error. On a terminal it is wrapped between words, elsewhere it is one line.

    The lines after the first are indented by `indent`. A word longer than a line, such as a path, is not broken.
    """
    file = file or sys.stderr
    if file is None:  # the stream was closed
        return
    width = terminal_width(file)
    line = line if line.isprintable() else f"{' ' * (len(line) - len(line.lstrip(' ')))}{one_line(line)}"
    print(line if width is None else wrapped(line, width, indent), file=file, flush=True)


def terminal_width(file: TextIO) -> int | None:
    """The columns of the terminal that a stream writes to; None if it writes to something else."""
    console = Console(file=file)
    return console.width if console.is_terminal else None


def wrapped(line: str, width: int, indent: int = 2) -> str:
    """The line in lines of at most `width` characters, the first one indented as it is."""
    start = len(line) - len(line.lstrip(" "))
    folded = textwrap.wrap(
        line.strip(),
        max(width, 20),
        initial_indent=" " * start,
        subsequent_indent=" " * (start + indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(folded)


class Advance(Protocol):
    """Called with the number of units done and a short text to show."""

    def __call__(self, done: int, words: str = "") -> None: ...


@contextmanager
def progress(label: str, total: int, unit: str, done: int = 0, brief: bool = False) -> Iterator[Advance]:
    """Show the progress of `total` units of work on standard error; yields the function to call with the units done.

    `brief` work prints no last line: it often ends before a user would wait for it.
    """
    console = Console(stderr=True)
    work = _Work(label, total, unit, done) if console.is_terminal else _Lines(label, total, unit, done, brief)
    outer = _innermost.set(work)
    try:
        with Live(work, console=console) if console.is_terminal else nullcontext():
            yield work.advance
            work.words = "" if work.done >= work.total else work.words
    finally:
        _innermost.reset(outer)


def detail(text: str) -> None:
    """Show where a long unit of work is, such as "restart 3/10, 57 images left"; call it as often as you like.

    The text ends the line of the innermost progress until the next unit is done. Without a progress nothing happens.
    """
    work = _innermost.get()
    if work is not None:
        work.report(text)


def expect(total: int) -> None:
    """Change how many units of work the innermost progress expects."""
    work = _innermost.get()
    if work is not None:
        work.total = total


class _Work:
    """How far the work is, as one line. What was done before a resume does not count for the rate."""

    def __init__(self, label: str, total: int, unit: str, done: int) -> None:
        self.label, self.total, self.unit, self.start, self.done = label, total, unit, done, done
        self.began = self.advanced = time.monotonic()
        self.words, self.longest = "", 0

    def advance(self, done: int, words: str = "") -> None:
        self.done, self.advanced = done, time.monotonic()
        self.report(words)

    def report(self, words: str) -> None:
        self.words, self.longest = words, max(self.longest, len(words))

    def counts(self) -> str:
        return f"{self.done}/{self.total} {self.unit}"

    def rate(self) -> str:
        rate = self._per_second()
        return f"{'-' if rate == 0 else f'{rate:.1f}' if rate >= 1 else f'{rate:.2g}'} {self.unit}/s"

    def left(self) -> str:
        """The time left; not known before the first unit is done, nor once it has run out."""
        rate, waited = self._per_second(), time.monotonic() - self.advanced
        due = (self.total - self.done) / rate - waited if rate > 0 else 0.0
        if due <= 0 and self.done < self.total:
            return "- left"
        seconds = max(int(due), 0)
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    def _per_second(self) -> float:
        """The rate until the last unit was done: the time since then belongs to a unit that is not counted yet."""
        return (self.done - self.start) / max(self.advanced - self.began, 1e-9)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line: label, bar, counts, rate, time left, words. Where it is narrow, the words have a line of their own.

        If that is not enough, the bar goes first, then the rate, then the end of the label. Room is kept for the
        longest words so far, so that the lines do not come and go.
        """
        del console
        label, words, width = Text(self.label), Text(self.words), options.max_width
        facts = f"{self.counts()}, {self.rate()}, {self.left()}"
        below = label.cell_len + len(facts) + self.longest + 2 > width
        spare = width - label.cell_len - len(facts) - 2 - (0 if below else self.longest + 1)
        if below and spare < -1:
            facts = f"{self.counts()}, {self.left()}"
        label.truncate(max(width - len(facts) - 1, LABEL_WIDTH), overflow="ellipsis")
        narrow, wide = BAR_WIDTHS
        share = self.done / max(self.total, 1)
        bars = [_bar(share, min(spare, wide), options.ascii_only)] if spare >= narrow else []
        yield _cut(Text(" ", no_wrap=True).join([label, *bars, Text(facts), *([] if below else [words])]), width)
        if below and self.longest and self.done < self.total:
            yield _cut(Text("  ", no_wrap=True).append_text(words), width)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _bar(share: float, width: int, ascii_only: bool) -> Text:
    done, rest = "=-" if ascii_only else "\u2501\u2500"
    filled = int(share * width)
    return Text.assemble((filled * done, "bar.complete"), ((width - filled) * rest, "bar.back"))


class _Lines(_Work):
    def __init__(self, label: str, total: int, unit: str, done: int, brief: bool) -> None:
        super().__init__(label, total, unit, done)
        self.brief, self.next = brief, time.monotonic() + SECONDS_BETWEEN_LINES

    def advance(self, done: int, words: str = "") -> None:
        if done >= self.total and not self.brief:
            self.next = 0.0
        super().advance(done, words)

    def report(self, words: str) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + SECONDS_BETWEEN_LINES
        line = f"{self.label}: {self.counts()}, {self.rate()}, {self.left()}{words and '  ' + words}"
        print(line, file=sys.stderr, flush=True)


_innermost: ContextVar[_Work | None] = ContextVar("innermost progress", default=None)


@contextmanager
def stop_requests(kept: Callable[[], str] = lambda: "", *, tell: bool = True) -> Iterator[list[int]]:
    """Yield a list; SIGINT and SIGTERM are appended to it, so the caller can finish its batch before it stops.

    The first signal prints at once what happens next, if `tell`. The second gets the previous handler and acts
    immediately; instead of its KeyboardInterrupt an `Interrupted` is raised that says what is `kept`.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def remember(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signature set by the signal module)
        asked.append(signum)
        restore()
        again = "; press Ctrl-C again to stop now" if signum == signal.SIGINT else ""
        with suppress(RuntimeError):  # Python refuses to print while it is printing
            if tell:
                say(f"stopping after this batch{again}")

    if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
        before |= {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, kept(), now=True) from None
    finally:
        restore()
