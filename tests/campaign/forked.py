"""A command in a process of its own, forked from this one, that may be killed."""

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from campaign.inside import command
from campaign.verdict import SECONDS, Ended

SAID = ".said.json"  # the output of a command that ended by itself
ORPHANS = 15.0  # seconds for the processes of a killed command to end


def attempt(
    words: list[str],
    before: Callable[[], None] = lambda: None,
    kick: tuple[float, int] | None = None,
) -> Ended:
    """The end of `atent WORDS` in a forked process; `before` is called in it. `kick`: a signal after so many seconds.

    The code of a process that a signal ended is minus its number.
    """
    Path(SAID).unlink(missing_ok=True)
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(words, before)
    os.close(held)
    began, kicked = time.monotonic(), kick is None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        passed = time.monotonic() - began
        if done:
            break
        if kick is not None and not kicked and passed >= kick[0]:
            os.kill(pid, kick[1])
            kicked = True
        if passed > SECONDS - 10:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(alive)
            return Ended(99, "", f"hangs: over {SECONDS - 10:g} s")
        time.sleep(0.002)
    if not _all_ended(alive):
        return Ended(99, "", f"hangs: processes of the command go on for {ORPHANS:g} s after its end")
    if os.WIFSIGNALED(status):
        return Ended(-os.WTERMSIG(status), "", "")
    try:
        return Ended(**json.loads(Path(SAID).read_bytes()))
    except (OSError, ValueError):
        return Ended(status >> 8, "", "")


def _all_ended(alive: int) -> bool:
    """Wait for the processes that the command started: each of them holds the other end of the pipe."""
    ready, _, _ = select.select([alive], [], [], ORPHANS)
    os.close(alive)
    return bool(ready)


def _child(words: list[str], before: Callable[[], None]) -> None:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        before()
        ended = command(*words)
    except KeyboardInterrupt:  # before the command began, or after its end
        ended = Ended(130, "", "")
    except BaseException:
        ended = Ended(98, "", traceback.format_exc())
    try:
        Path(SAID).write_text(json.dumps(asdict(ended)))
    finally:
        os._exit(0)
