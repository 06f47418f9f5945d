"""A command in a forked process with real streams: files, closed ones, pipes without a reader, full disks."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from atent.cli import main
from campaign.verdict import Ended

Stream = str  # "file", "closed", "unread" (a pipe without a reader) or "full"


def start(words: list[str], before: Callable[[], None], out: Stream = "file", err: Stream = "file") -> int:
    """Start `atent WORDS` in a forked process, in which `before` is called first; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 97
    try:
        for number, stream in ((1, out), (2, err)):
            _redirect(number, stream)
        sys.stdout, sys.stderr = _opened(1, out), _opened(2, err)
        before()
        sys.argv = ["atent", *words]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            with suppress(OSError):
                traceback.print_exc()
            code = 96
        code = code if all(map(_flushed, (sys.stdout, sys.stderr))) else 120  # as Python itself would end
    finally:
        os._exit(code)


def _flushed(stream: TextIO | None) -> bool:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return False
    return True


def _redirect(number: int, stream: Stream) -> None:
    if stream == "closed":
        os.close(number)
        return
    if stream == "unread":
        reader, handle = os.pipe()
        os.close(reader)
    else:
        path = "/dev/full" if stream == "full" else f".stream{number}.{os.getpid()}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, number)
    os.close(handle)


def _opened(number: int, stream: Stream) -> TextIO | None:
    if stream == "closed":
        return None
    return open(number, "w", encoding="utf-8", closefd=False, buffering=1)


def end_of(pid: int) -> Ended:
    """Wait for a process; its code and what it wrote."""
    for _ in range(10_000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
            path = Path(f".stream2.{pid}")
            return Ended(code, "", path.read_text(errors="replace") if path.exists() else "")
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return Ended(99, "", "hangs: over 50 s")
