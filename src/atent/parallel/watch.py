"""A process that falls silent ends the job: a host without power or network closes no connection."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atent.parallel.team import Team

BEAT, SILENT, PATIENCE = 1.0, 8.0, 3.0  # seconds: between signs of life, without one, for an answer of the store


@contextmanager
def watching(team: Team, lost: Callable[[str], None]) -> Iterator[None]:
    """In the block, a thread gives signs of life and expects those of the next process; `lost` is called without them.

    The signs pass through the store that torchrun keeps, over a connection of their own.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(team, lost, ended), name="atent watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * PATIENCE)


def _watch(team: Team, lost: Callable[[str], None], ended: threading.Event) -> None:
    other = (team.rank + 1) % team.size
    count, seen, since = 0, b"", time.monotonic()
    store: Any = None
    while not ended.wait(BEAT):
        count += 1
        try:
            store = store or _connect()
            store.set(_key(team.rank), str(count))
            found = store.get(_key(other)) if store.check([_key(other)]) else b""
        except RuntimeError:
            store, found = None, seen
        if found != seen:
            seen, since = found, time.monotonic()
        elif time.monotonic() - since > SILENT and not ended.is_set():
            lost(f"no sign of life from process {other} for {SILENT:.0f} s")
            return


def _connect() -> Any:
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*place, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))


def _key(rank: int) -> str:
    return f"atent/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/alive/{rank}"
