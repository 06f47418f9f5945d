"""Join the processes that torchrun started."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from atent.errors import LostProcess, UserError
from atent.parallel.team import ALONE, Team, current_team, reason_of, working_in
from atent.parallel.watch import watching

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
WAIT = timedelta(minutes=30)  # for a message: the others may evaluate or save meanwhile; `watching` notices losses


class _Job:
    """The store of the processes that torchrun started, while there is one, and how often they have joined."""

    store: Any = None
    joins: int = 0


def is_launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return all(name in os.environ for name in VARIABLES) and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def joined() -> Iterator[Team]:
    """In the block, this process is one of the team that torchrun started, or of the group that is initialized.

    Without torchrun the team is this process alone. Each process of a team must make the same calls. Only the first one
    prints.
    """
    if current_team().size > 1:
        yield current_team()
        return
    ours = not dist.is_initialized()
    if ours and not is_launched():
        yield ALONE
        return
    if ours:
        _start()
    team = Team(dist.get_rank(), dist.get_world_size())
    if "gloo" not in dist.get_backend_config():
        raise UserError(f"the process group has the backend {dist.get_backend_config()}; allowed: gloo for the CPU too")
    with working_in(team), _printing_once(team), watching(team, _end) if ours else nullcontext():
        yield team
        team.wait()
    if ours:
        _Job.store = None
        dist.destroy_process_group()


def _start() -> None:
    rank, size, local = (int(os.environ[name]) for name in VARIABLES[:3])
    backend = "gloo"
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise UserError(
                f"process {rank} is number {local} of its host, which has {torch.cuda.device_count()} GPUs; allowed: "
                "a process per GPU, or CUDA_VISIBLE_DEVICES='' for the CPU"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, *_ = next(rendezvous("env://", rank, size, timeout=WAIT))
        _Job.joins += 1
        _Job.store = PrefixStore(f"atent/{_Job.joins}", store)
        dist.init_process_group(backend, store=_Job.store, rank=rank, world_size=size, timeout=WAIT)
    except RuntimeError as error:
        raise LostProcess(reason_of(error)) from None


@contextmanager
def _printing_once(team: Team) -> Iterator[None]:
    """Only the first process prints; an exception leaves the block with the usual streams."""
    if team.leads:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def speaks() -> bool:
    """Whether this process is the first of its job to report an end, so that the job reports it once."""
    if _Job.store is None:
        return True
    try:
        return bool(_Job.store.add("ended", 1) == 1)
    except RuntimeError:  # the store is gone too
        return True


def _end(reason: str) -> None:
    """End this process from another thread: the main one waits for a message that will not come."""
    if speaks():
        print(LostProcess(reason), file=sys.__stderr__, flush=True)
    leave()


def leave() -> NoReturn:
    """End at once: what torch does at the end of a process may wait for the one that was lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
