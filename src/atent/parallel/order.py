"""Results that several processes compute in turn, put in order."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from atent.parallel.team import Team

T = TypeVar("T")


def turns(team: Team, parts: Sequence[T]) -> Sequence[T]:
    """The parts of the work that fall to this process: every `size`-th."""
    return parts[team.rank :: team.size]


def in_order(team: Team, mine: Iterable[Sequence[T]]) -> Iterator[list[T]]:
    """The results of all parts in order, in every process; `mine` yields those of this process's `turns`.

    It may yield several results at once, or none. A result consists of what JSON has. All processes meet after each
    list of `mine`; whoever stops reading must do so in every process.
    """
    if team.size == 1:
        yield from map(list, mine)
        return
    source, turn = iter(mine), 0
    waiting: list[deque[T]] = [deque() for _ in range(team.size)]
    while True:
        some = next(source, None)
        told = [json.loads(text) for text in team.gather(json.dumps(some if some is None else list(some)))]
        if told == [None] * team.size:
            return
        for queue, results in zip(waiting, told, strict=True):
            queue.extend(results or ())
        ready: list[T] = []
        while waiting[turn]:
            ready.append(waiting[turn].popleft())
            turn = (turn + 1) % team.size
        yield ready
