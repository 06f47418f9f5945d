"""Predictions under noise are counted in batches, each filled with draws of several images.

Each image has its own noise generators, derived from (seed, image, purpose), and draws from them in whole blocks. So
the noise depends neither on the batch size, nor on other images in the batch, nor on an interruption.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from atent.network import answers, borrowed
from atent.randomness import derive
from atent.smoothing.bounds import ABSTAIN, Certificate, vote
from atent.smoothing.stopping import BLOCK, Smoothing


class Block(NamedTuple):
    """Draws that are made together: their purpose and their number."""

    purpose: str
    size: int


def blocks(purpose: str, draws: int) -> list[Block]:
    """Blocks of 100 draws, and a last one with the rest."""
    sizes = [BLOCK] * (draws // BLOCK) + ([draws % BLOCK] if draws % BLOCK else [])
    return [Block(purpose, size) for size in sizes]


class Case(Protocol):
    """An image in progress. It requests blocks (`wanted`) and receives their counts (`take`).

    After the counts of all its blocks, `advance` requests more blocks or sets `done`.
    """

    index: int
    image: Tensor
    streams: dict[str, torch.Generator]  # by purpose
    wanted: list[Block]
    done: bool

    def take(self, counts: Sequence[int]) -> None: ...

    def advance(self) -> None: ...


C = TypeVar("C", bound=Case)


class Vote:
    """n draws, then a vote: PREDICT of Cohen et al."""

    def __init__(self, index: int, image: Tensor, how: Smoothing) -> None:
        self.index, self.image, self.how = index, image, how
        self.streams: dict[str, torch.Generator] = {}
        self.wanted, self.done = blocks("predict", how.n), False
        self.counts: Counter[int] = Counter()
        self.prediction = ABSTAIN

    def take(self, counts: Sequence[int]) -> None:
        self.counts.update(dict(enumerate(counts)))

    def advance(self) -> None:
        self.prediction, self.done = vote([self.counts[k] for k in range(len(self.counts))], self.how.alpha), True


class Trial:
    """CERTIFY: n0 draws select a class, then draws are counted, look by look, until the test is settled.

    An image whose selected class is not its `label` counts as wrong at every radius. An early test then only decides
    whether there is a prediction.
    """

    def __init__(self, index: int, image: Tensor, how: Smoothing, label: int | None = None) -> None:
        self.index, self.image, self.how, self.label = index, image, how, label
        self.streams: dict[str, torch.Generator] = {}
        self.wanted, self.done = blocks("select", how.n0), False
        self.counts: Counter[int] = Counter()
        self.top, self.test = ABSTAIN, how.test()

    def take(self, counts: Sequence[int]) -> None:
        self.counts.update({k: count for k, count in enumerate(counts) if count})

    def advance(self) -> None:
        seen = 0
        if self.top == ABSTAIN:
            self.top = min(self.counts, key=lambda k: (-self.counts[k], k))
            self.test = self.how.test(only_predict=self.label not in (None, self.top))
            self.counts.clear()
        else:
            seen = self.counts.total()
            self.test.look(self.counts[self.top])
        self.done = self.test.settled
        if not self.done:
            self.wanted = blocks("estimate", self.test.next)[seen // BLOCK :]

    @property
    def certificate(self) -> Certificate:
        radius, draws = self.test.radius(), self.how.n0 + self.counts.total()
        prediction = ABSTAIN if radius is None else self.top
        return Certificate(prediction, radius or 0.0, self.top, dict(self.counts.most_common()), draws)


def run_cases(network: nn.Module, cases: Iterable[C], sigma: float, seed: int, batch: int) -> Iterator[list[C]]:
    """Fill batches with the blocks that open cases want, then with new cases; yields the finished cases, in order."""
    coming, opened = iter(cases), list[C]()
    room = max(1, batch // BLOCK)
    noisy: Tensor | None = None
    with borrowed(network):
        while True:
            work: list[tuple[C, Block]] = []
            for case in _open_cases(opened, coming):
                count = room - len(work)
                work += [(case, block) for block in case.wanted[:count]]
                case.wanted = case.wanted[count:]
                if len(work) == room:
                    break
            if not work:
                return
            if noisy is None:
                noisy = _buffer(work[0][0].image, room * BLOCK)
            for (case, _), counts in zip(work, _count(network, work, noisy, sigma, seed), strict=True):
                case.take(counts)
            for case in {id(case): case for case, _ in work}.values():
                if not case.wanted:
                    case.advance()
            finished = 0
            while finished < len(opened) and opened[finished].done:
                finished += 1
            yield opened[:finished]
            del opened[:finished]


def _open_cases(opened: list[C], coming: Iterator[C]) -> Iterator[C]:
    """The open cases, then new ones, which are added to the open cases."""
    yield from list(opened)
    for case in coming:
        opened.append(case)
        yield case


def _buffer(image: Tensor, count: int) -> Tensor:
    """A buffer for noisy copies; for images with channels it has the channels-last layout (faster convolutions)."""
    last = image.dim() == 3
    shape = (*image.shape[1:], image.shape[0]) if last else image.shape
    room = torch.empty(count, *shape, device=image.device, dtype=image.dtype)
    return room.movedim(-1, 1) if last else room


def _count(
    network: nn.Module, work: Sequence[tuple[Case, Block]], noisy: Tensor, sigma: float, seed: int
) -> list[list[int]]:
    """How often each class is predicted in each block. The noise is drawn in place, in the buffer of the copies."""
    in_memory = noisy.movedim(1, -1) if noisy.dim() == 4 else noisy  # in this order it is contiguous
    begin = 0
    for case, block in work:
        end = begin + block.size
        if block.purpose not in case.streams:
            case.streams[block.purpose] = derive(seed, "smoothing", case.index, block.purpose, device=noisy.device)
        in_memory[begin:end].normal_(0, sigma, generator=case.streams[block.purpose])
        noisy[begin:end] += case.image
        begin = end
    logits = answers(network, noisy[:begin])
    sizes = torch.tensor([block.size for _, block in work], device=logits.device)
    place = torch.arange(len(work), device=logits.device).repeat_interleave(sizes)
    classes = logits.shape[1]
    counts = torch.bincount(place * classes + logits.argmax(1), minlength=len(work) * classes)
    table: list[list[int]] = counts.view(len(work), classes).tolist()
    return table
