"""Calls in several processes of one job, as torchrun starts them, but forked: importing torch takes longer."""

import multiprocessing
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atent.parallel.join import joined
from atent.parallel.team import Team

SECONDS = 60


def start(work: Callable[..., Any], *arguments: Any, size: int = 2) -> tuple[Any, list[tuple[BaseProcess, Connection]]]:
    """Start `work(team, *arguments)` in each process; returns the store, to be kept, and the processes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # CUDA and autograd's threads for it do not survive a fork.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    started: list[tuple[BaseProcess, Connection]] = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(theirs, rank, size, store.port, work, *arguments))  # type: ignore[attr-defined]
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # of a fork next to threads
            process.start()
        theirs.close()
        started.append((process, ours))
    return store, started


def together(work: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
    """What `work(team, *arguments)` returns in each of so many processes."""
    store, started = start(work, *arguments, size=size)
    results = [result_of(*one) for one in started]
    del store
    return results


def result_of(process: BaseProcess, pipe: Connection) -> Any:
    """What a process returned; its exception is raised with its traceback as text."""
    assert pipe.poll(SECONDS), f"no answer after {SECONDS} s"
    failed, result = pickle.loads(pipe.recv_bytes())
    process.join(SECONDS)
    assert not failed, result
    return result


def _run(pipe: Connection, rank: int, size: int, port: int, work: Callable[[Team], Any], *arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    try:
        with joined() as team:
            found = work(team, *arguments)
        answer = (False, found)
    except BaseException:
        answer = (True, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))  # torch would have tensors shared with a process that ends here
