"""Run a command of atent inside this process, as a process of its own would, and leave no trace here."""

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import torch

from atent.cli import main
from campaign.verdict import Ended


def command(*arguments: object, patience: float | None = None) -> Ended:
    """The end of `atent ARGUMENTS`. After `patience` seconds it is interrupted as by Ctrl-C, again and again."""
    out, err = _stream("strict"), _stream("backslashreplace")
    with _restored(), _impatient(patience), redirect_stdout(out), redirect_stderr(err):
        sys.argv = ["atent", *map(str, arguments)]
        code = _code(err)
    return Ended(code, _text(out), _text(err))


def _stream(errors: str) -> io.TextIOWrapper:
    """A stream as Python opens it for a pipe."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode("utf-8", errors="replace")


def _code(err: io.TextIOWrapper) -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # one more, after the command had ended
        return 130
    except BaseException:
        traceback.print_exc(file=err)
        return 1
    return 0


@contextmanager
def _restored() -> Iterator[None]:
    """The folder, environment, threads, path and signal handlers of before."""
    before, variables, path = Path.cwd(), dict(os.environ), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    modules = set(sys.modules)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_grad_enabled(True)  # an interrupt may come while it is off
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        for name in set(sys.modules) - modules:
            if name.startswith("own_"):  # the modules of cases
                del sys.modules[name]


@contextmanager
def _impatient(seconds: float | None) -> Iterator[None]:
    """Interrupt the work by SIGINT after so many seconds, then more often."""
    if seconds is None:
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (as the signal module calls it)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
