"""A smoothed network: predicts, certifies, and can be attacked. Draws are counted in batches filled across images.

The noise of an image has a generator of its own, derived from (seed, image, purpose), and is read from it in whole
blocks: what is drawn depends neither on the batch size nor on the images beside it, nor on an interruption.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from atent.borrow import borrowed
from atent.certificate import ABSTAIN, BLOCK, Certificate, Smoothing, vote
from atent.errors import UserError
from atent.passes import answers
from atent.randomness import derive


class Smoothed(nn.Module):
    """g(x): what `network` says of x + N(0, sigma^2 I), averaged over `draws` fresh draws of the noise.

    Called, it returns log E softmax(network(x + noise)), so cross-entropy on it is the smoothed loss of Salman et al.
    2019 (https://arxiv.org/abs/1906.04584) and any attack can attack it. `predict` and `certify` count hard answers, as
    Cohen et al. do, and give guarantees; the network is in eval mode then.
    """

    def __init__(self, network: nn.Module, sigma: float, draws: int = 16, seed: int = 0) -> None:
        super().__init__()
        refuse_randomized(network)
        Smoothing(sigma)  # checks it
        if draws < 1:
            raise UserError(f"draws {draws}; allowed: 1 or more")
        self.network, self.sigma, self.draws, self.seed = network, sigma, draws, seed
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities; every call draws anew, the same in every process."""
        self.calls += 1
        generator = derive(self.seed, "smoothed", self.calls, device=x.device)
        noise = normal_noise(x, self.draws, self.sigma, generator)
        return log_mean(self.network(noisy_copies(x, noise)), self.draws)

    def predict(self, x: Tensor, *, n: int = 1000, alpha: float = 0.001, seed: int = 0, batch: int = 1000) -> Tensor:
        """The class of each image, or ABSTAIN where it is not proven; wrong about g with probability alpha at most."""
        how = Smoothing(self.sigma, n=n, alpha=alpha)
        votes = [Vote(k, image, how) for k, image in enumerate(x)]
        done = [case for some in work_off(self.network, votes, self.sigma, seed, batch) for case in some]
        return torch.tensor([case.prediction for case in done], device=x.device)

    def certify(
        self, x: Tensor, how: Smoothing, *, y: Tensor | None = None, seed: int = 0, batch: int = 1000
    ) -> list[Certificate]:
        """The class and the certified l2 radius of each image. Labels `y`, if given, save draws on wrong ones."""
        if how.sigma != self.sigma:
            raise UserError(f"sigma {how.sigma:g} for a network smoothed with sigma {self.sigma:g}; allowed: the same")
        labels = [None] * len(x) if y is None else y.tolist()
        trials = [Trial(k, image, how, label) for k, (image, label) in enumerate(zip(x, labels, strict=True))]
        done = [case for some in work_off(self.network, trials, self.sigma, seed, batch) for case in some]
        return [case.certificate for case in done]


def refuse_randomized(network: nn.Module) -> None:
    if isinstance(network, Smoothed):
        raise UserError("the network is smoothed already; allowed: the network inside, which is not randomized")


def normal_noise(x: Tensor, draws: int, sigma: float, generator: torch.Generator) -> Tensor:
    """Noise of shape (draws, *x.shape)."""
    return torch.empty(draws, *x.shape, device=x.device, dtype=x.dtype).normal_(0, sigma, generator=generator)


def noisy_copies(x: Tensor, noise: Tensor) -> Tensor:
    """x with each draw of the noise, one after the other: shape (draws * n, ...)."""
    copies = (x + noise).flatten(0, 1)
    return copies.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else copies


def log_mean(logits: Tensor, draws: int) -> Tensor:
    """The log of the probabilities of `noisy_copies`, averaged over the draws: shape (n, classes)."""
    log_probabilities = functional.log_softmax(logits, 1).unflatten(0, (draws, -1))
    mean: Tensor = log_probabilities.logsumexp(0) - math.log(draws)
    return mean


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
