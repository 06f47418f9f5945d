"""Ctrl-C while a command runs, also where code that is being imported swallows it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from atent.errors import Interrupted, LostProcess

STOPPED = 130  # 128 + SIGINT
STOPPED_LINE = "stopped. Run the same command to resume."
_IMPORTS = "<frozen importlib._bootstrap>"


@contextmanager
def remembering_interrupts() -> Iterator[None]:
    """In the block, Ctrl-C ends the process at once while a module is imported; else it is a KeyboardInterrupt.

    An import that is interrupted may hide it and leave a module half imported, so that a later import fails in another
    way, and C++ code that does not catch it aborts the process. Nothing is lost by an end at any time. An error after a
    KeyboardInterrupt that something else has hidden is one, too. A handler other than Python's own stays.
    """
    asked = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if _is_importing(frame):
            _leave()
        signal.default_int_handler(signum, frame)

    ours = _python_handles_it()
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except (Interrupted, LostProcess):  # they say more
        raise
    except Exception as error:
        if asked:
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _python_handles_it() -> bool:
    """Whether Ctrl-C reaches Python's own handler here; a handler can be set in the main thread only."""
    alone = threading.current_thread() is threading.main_thread()
    return alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the code that was interrupted runs for an import."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False


def _leave() -> NoReturn:
    """End at once and say so; of the processes that torchrun started, the first one does."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, f"{STOPPED_LINE}\n".encode())
    os._exit(STOPPED)
