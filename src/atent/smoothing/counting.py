"""Noisy answers counted, in batches that are filled across images.

The noise of an image has a generator of its own, derived from (seed, image, purpose), and is read from it in whole
blocks: what is drawn depends neither on the batch size nor on the images beside it, nor on an interruption."""

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
    """Draws to be made together: what for, and how many."""

    purpose: str
    size: int


def blocks(purpose: str, draws: int) -> list[Block]:
    """Blocks of 100 draws, and the rest."""
    sizes = [BLOCK] * (draws // BLOCK) + ([draws % BLOCK] if draws % BLOCK else [])
    return [Block(purpose, size) for size in sizes]


class Case(Protocol):
    """An image on its way: it wants blocks, takes their counts, and once it has all it wanted goes on or is done."""

    index: int
    image: Tensor
    streams: dict[str, torch.Generator]  # by purpose
    wanted: list[Block]
    done: bool

    def take(self, counts: Sequence[int]) -> None: ...

    def go_on(self) -> None: ...


C = TypeVar("C", bound=Case)


class Vote:
    """n draws, and a vote: Cohen et al.'s PREDICT."""

    def __init__(self, index: int, image: Tensor, how: Smoothing) -> None:
        self.index, self.image, self.how = index, image, how
        self.streams: dict[str, torch.Generator] = {}
        self.wanted, self.done = blocks("predict", how.n), False
        self.counts: Counter[int] = Counter()
        self.prediction = ABSTAIN

    def take(self, counts: Sequence[int]) -> None:
        self.counts.update(dict(enumerate(counts)))

    def go_on(self) -> None:
        self.prediction, self.done = vote([self.counts[k] for k in range(len(self.counts))], self.how.alpha), True


class Trial:
    """n0 draws choose a class, then draws are counted from look to look until the test is settled: CERTIFY.

    An image whose chosen class is not its `label` counts as wrong at every radius, so an early test then only asks
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

    def go_on(self) -> None:
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


def work_off(network: nn.Module, cases: Iterable[C], sigma: float, seed: int, batch: int) -> Iterator[list[C]]:
    """Fill batches with the blocks that open cases want, then with new cases; after each, those done, in order."""
    coming, opened = iter(cases), list[C]()
    room = max(1, batch // BLOCK)
    noisy: Tensor | None = None
    with borrowed(network):
        while True:
            work: list[tuple[C, Block]] = []
            for case in _endless(opened, coming):
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
                    case.go_on()
            finished = 0
            while finished < len(opened) and opened[finished].done:
                finished += 1
            yield opened[:finished]
            del opened[:finished]


def _endless(opened: list[C], coming: Iterator[C]) -> Iterator[C]:
    """The open cases, then new ones, which are open from then on."""
    yield from list(opened)
    for case in coming:
        opened.append(case)
        yield case


def _buffer(image: Tensor, count: int) -> Tensor:
    """Room for noisy copies, with the channels last in memory, where convolutions are faster, if it is a picture."""
    last = image.dim() == 3
    shape = (*image.shape[1:], image.shape[0]) if last else image.shape
    room = torch.empty(count, *shape, device=image.device, dtype=image.dtype)
    return room.movedim(-1, 1) if last else room


def _count(
    network: nn.Module, work: Sequence[tuple[Case, Block]], noisy: Tensor, sigma: float, seed: int
) -> list[list[int]]:
    """How often each class comes up in each block. The noise is made in place, where the copies are."""
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
