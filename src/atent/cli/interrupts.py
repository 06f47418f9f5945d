"""Ctrl-C while a command runs, also where code that is being imported swallows it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from atent.errors import Interrupted, LostProcess


@contextmanager
def remembering_interrupts() -> Iterator[None]:
    """In the block, an error after Ctrl-C is a KeyboardInterrupt, as if nothing had swallowed the first one.

    An import that is interrupted may hide it and leave a module half imported, so a later import fails in another way.
    A handler other than Python's own stays.
    """
    asked = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
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
