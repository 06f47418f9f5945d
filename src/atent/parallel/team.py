"""The processes of a job: which images each takes, and the messages between them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

from atent.errors import LostProcess, UserError
from atent.randomness import Share

T = TypeVar("T")
LEAST = 2  # images of a process in a batch: BatchNorm cannot be trained on one


@dataclass(frozen=True)
class Team:
    """`size` processes that make the same calls in the same order; this one has the number `rank`.

    The first one, with rank 0, leads: it alone writes files and prints. A team of one sends nothing.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def part(self, images: int) -> slice:
        """The images of a batch that this process computes; of a batch with fewer than two for each, all."""
        if images < LEAST * self.size:
            return slice(0, images)
        return slice(images * self.rank // self.size, images * (self.rank + 1) // self.size)

    def share(self, generator: torch.Generator, images: int) -> torch.Generator:
        """The random numbers of this process for its part of a batch whose numbers come from `generator`."""
        return Share.of(generator, self.rank, images, self.part(images)) if self.size > 1 else generator

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            with _reaching():
                dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest value of a process."""
        found = torch.tensor([value])
        if self.size > 1:
            with _reaching():
                dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def copy_first(self, tensors: Iterator[Tensor]) -> None:
        """Give these tensors the values of the first process."""
        with _reaching():
            for tensor in tensors if self.size > 1 else ():
                sent = tensor.contiguous()
                dist.broadcast(sent, 0)
                tensor.copy_(sent)

    def join(self, mine: Tensor, images: int) -> Tensor:
        """The numbers of a whole batch, shape (images,), of those that each process has for its part."""
        whole = mine.new_zeros(images)
        part = self.part(images)
        if self.leads or part.stop - part.start < images:
            whole[part] = mine
        return self.add(whole)

    def gather(self, mine: str) -> list[str]:
        """The texts of all processes."""
        if self.size == 1:
            return [mine]
        content = mine.encode()
        with _reaching():
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(content)
            dist.all_reduce(lengths)
            sent = torch.zeros(int(lengths.max()), dtype=torch.uint8)
            sent[: len(content)] = torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)[: len(content)]
            found = [torch.empty_like(sent) for _ in range(self.size)]
            dist.all_gather(found, sent)
        return [bytes(one[:length].numpy()).decode() for one, length in zip(found, lengths.tolist(), strict=True)]

    def first(self, value: T) -> T:
        """The value of the first process, as JSON has it."""
        told: T = json.loads(self.gather(json.dumps(value) if self.leads else "")[0]) if self.size > 1 else value
        return told

    def first_of(self, ask: Callable[[], T]) -> T:
        """What the first process gets when it asks; the others do not ask."""
        return self.first(ask()) if self.size == 1 or self.leads else self.first(cast(T, None))

    def check_same(self, value: Any, what: str) -> None:
        """Refuse to go on if a process has another value than the first."""
        texts = self.gather(json.dumps(value, sort_keys=True))
        different = [rank for rank, text in enumerate(texts) if text != texts[0]]
        if different:
            raise UserError(
                f"process {different[0]} of {self.size} has another {what} than process 0: {texts[different[0]]:.80} "
                f"instead of {texts[0]:.80}; all hosts need the same command and the same folders"
            )

    def check_close(self, value: float, what: str) -> None:
        """Refuse to go on if a process has a value that differs by more than rounding."""
        values = list(map(float, self.gather(repr(value))))
        if max(values) - min(values) > 1e-3 * abs(values[0]):
            raise UserError(
                f"the {what} of the processes differ ({min(values):.6g} to {max(values):.6g}): they drew other random "
                "numbers or ran other code; all hosts need the same versions, and a method of your own must draw alike"
            )

    def wait(self) -> None:
        """Wait until every process is here."""
        self.largest(0)


def reason_of(error: RuntimeError) -> str:
    """The first sentence of an error of torch, without the place in its source."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(". ")[0].rstrip(".")


@contextmanager
def _reaching() -> Iterator[None]:
    """What torch raises when a process is gone becomes one error."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcess(reason_of(error)) from None


ALONE = Team()
_current: ContextVar[Team] = ContextVar("team", default=ALONE)


def current_team() -> Team:
    """The team that this process has joined (`joined`); a team of one if it has joined none."""
    return _current.get()


@contextmanager
def working_in(team: Team) -> Iterator[Team]:
    """In the block, this team is the current one."""
    token = _current.set(team)
    try:
        yield team
    finally:
        _current.reset(token)
