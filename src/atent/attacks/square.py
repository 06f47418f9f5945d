"""Square: a random search without gradients, by changes of one square each."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from atent.ascent import Points
from atent.attacks.early_stopping import Watched, until_broken
from atent.attacks.protocols import attack_each, named
from atent.errors import UserError
from atent.losses import margin
from atent.methods import Count, Fraction, Scale, method
from atent.progress import detail
from atent.threat import Threat, over_pixels

FAR = 1e9  # beyond any distance of images; the square of a larger radius may overflow
BLOCK = 100  # queries whose numbers are drawn at once for each image
LOOKS = 20  # at the best margins so far, evenly spaced; at every second one an image may be given up
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries


@method
class Square:
    """Square: `queries` random changes, each kept where the margin grows.

        x'_{k+1} = x'_k + change  if  margin(x'_k + change) > margin(x'_k),  else x'_k

    linf: from vertical stripes of +-eps, a change sets a square to +eps or -eps in each channel. l2: from a tiling with
    bumps of unit norm, a change moves the norm of one square, and what is left of eps, into a bump in another. Squares
    cover a share of the image that starts at `p_init` and is halved nine times (after .1, .5, 2, 5, 10, 20, 40, 60 and
    80 % of the queries). Forward passes only.

    With a `patience` above 0 an image is given up at query k, a tenth of the queries or a multiple of it, if

        -margin_k > patience log2(queries / k) (margin_k - margin_{k/2})

    that is, if it would not be broken though each doubling of the queries gained `patience` times what the last did.

    Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049; the tiling, the bumps and the schedule are those of
    AutoAttack. Differs from AutoAttack's code in: the numbers of each image are its own; squares reach the last row
    and column, as in the paper; images of 14 x 14 and other sides that five tiles do not fill are allowed.
    """

    queries: Count = 5000
    p_init: Fraction = 0.8
    patience: Scale = 0.0
    gradient_free: ClassVar[bool] = True

    @property
    def title(self) -> str:
        return named(f"Square-{self.queries}", self, said=("queries",))

    __call__ = attack_each

    def each(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> Tensor:
        search = partial(try_squares, queries=self.queries, p_init=self.p_init, patience=self.patience)
        return until_broken(model, x, y, threat, generators, search, loss=margin)


def try_squares(
    objective: Callable[[Tensor], Tensor],
    x: Tensor,
    threat: Threat,
    *,
    queries: int,
    p_init: float,
    patience: float = 0.0,
    generator: Sequence[torch.Generator],
) -> Points:
    """Yield every point to be tried, then the best; a taker may send masks as to `ascend`. No gradient is taken."""
    if x.dim() != 4:
        raise UserError(f"attack square: images of shape {tuple(x.shape)}; allowed: (n, channels, height, width)")
    if threat.eps == 0:
        yield x
        return
    evaluate, pixels = torch.no_grad()(objective), x[0, 0].numel()
    changes = (Signs if threat.norm == "linf" else Bumps)(x.detach(), threat)
    best = changes.start(draw(generator, changes.numbers_to_start, x))
    best_loss = evaluate(best)
    history = best_loss.repeat(LOOKS, 1)
    for query in range(queries + 1):
        if query % BLOCK == 0:
            numbers = draw(generator, BLOCK * changes.numbers, x).view(len(best), BLOCK, -1)
        if last := query == queries:
            point = best
        else:
            side = changes.side(share(query, queries, p_init) * pixels)
            point = changes.propose(best, numbers[:, query % BLOCK], side)
        detail(f"Square, query {query}/{queries}, {len(best)} images left")
        keep = yield point
        while keep is not None:
            changes.keep(keep)
            best, best_loss, point, numbers = best[keep], best_loss[keep], point[keep], numbers[keep]
            history = history[:, keep]
            generator = [one for one, kept in zip(generator, keep.tolist(), strict=True) if kept]
            keep = yield point
        if not last:
            loss = evaluate(point)
            better = loss > best_loss
            best, best_loss = torch.where(over_pixels(better, best), point, best), torch.where(better, loss, best_loss)
            look, rest = divmod((query + 1) * LOOKS, queries)
            if patience and rest < LOOKS and look < LOOKS:
                history[look] = best_loss
                if look % 2 == 0 and isinstance(objective, Watched):
                    objective.give_up(hopeless(history, look, patience))


def hopeless(history: Tensor, look: int, patience: float) -> Tensor:
    """Which images to give up at a look, by the best margin so far at each look, shape (LOOKS, n)."""
    gain = history[look] - history[look // 2]
    return -history[look] > patience * math.log2(LOOKS / look) * gain


def share(query: int, queries: int, p_init: float) -> float:
    """The share of the image that a square covers: halved nine times, at fixed shares of the queries."""
    scaled = int(query / queries * 10_000)
    return p_init / 2.0 ** sum(scaled > after for after in HALVED_AFTER)


def draw(generators: Sequence[torch.Generator], count: int, x: Tensor) -> Tensor:
    """So many numbers in [0, 1) for each image, from its own generator."""
    return torch.stack([torch.rand(count, generator=one, device=x.device) for one in generators])


def corner(numbers: Tensor, side: int, length: int) -> Tensor:
    """The first row (or column) of a square of this side, uniform over those at which it fits."""
    return (numbers * (length - side + 1)).long()


class Signs:
    """linf: every pixel that was changed is at the lowest or the highest value that the threat allows."""

    def __init__(self, x: Tensor, threat: Threat) -> None:
        self.low, self.high = threat.clamp(x - threat.radius), threat.clamp(x + threat.radius)
        self.rows, self.columns = (torch.arange(length, device=x.device) for length in x.shape[2:])
        self.numbers_to_start, self.numbers = x.shape[1] * x.shape[3], 2 + x.shape[1]

    def keep(self, mask: Tensor) -> None:
        self.low, self.high = self.low[mask], self.high[mask]

    def side(self, pixels: float) -> int:
        return min(max(round(math.sqrt(pixels)), 1), len(self.rows), len(self.columns))

    def start(self, numbers: Tensor) -> Tensor:
        """Vertical stripes, one pixel wide."""
        count, channels, _, width = self.low.shape
        stripes = torch.where(numbers.view(count, channels, 1, width) >= 0.5, self.high, self.low)
        return torch.empty_like(self.low).copy_(stripes)  # in the layout of x, which the condition has not

    def propose(self, best: Tensor, numbers: Tensor, side: int) -> Tensor:
        """A square, in each channel at the highest or the lowest value."""
        below = self.rows - corner(numbers[:, :1], side, len(self.rows))
        right = self.columns - corner(numbers[:, 1:2], side, len(self.columns))
        rows, columns = (below >= 0) & (below < side), (right >= 0) & (right < side)
        square = torch.where(numbers[:, 2:, None, None] >= 0.5, self.high, self.low)
        return torch.where(rows[:, None, :, None] & columns[:, None, None, :], square, best)


class Bumps:
    """l2: the perturbation has norm eps; a square takes the norm of another and of what is left of eps."""

    def __init__(self, x: Tensor, threat: Threat) -> None:
        self.x, self.threat = x, threat if threat.eps <= FAR else threat.scaled(FAR / threat.eps)
        _, channels, height, width = x.shape
        self.tile = max(height // 5, 1)
        self.margin = max(height - 5 * self.tile, 0) // 2
        self.tiles = tuple(max(length - self.margin, 0) // self.tile for length in (height, width))
        self.numbers_to_start, self.numbers = math.prod(self.tiles) * (1 + channels), 5 + channels

    def keep(self, mask: Tensor) -> None:
        self.x = self.x[mask]

    def side(self, pixels: float) -> int:
        return min(max(round(math.sqrt(pixels)), 3) // 2 * 2 + 1, *map(int, self.x.shape[2:]))

    def start(self, numbers: Tensor) -> Tensor:
        """A bump in each tile."""
        down, across = self.tiles
        bumps = self._bumps(numbers.view(-1, 1 + self.x.shape[1]), self.tile)
        grid = bumps.view(len(self.x), down, across, *bumps.shape[1:]).permute(0, 3, 1, 4, 2, 5)
        tiled, first = grid.flatten(4, 5).flatten(2, 3), self.margin
        delta = torch.zeros_like(self.x)
        delta[:, :, first : first + down * self.tile, first : first + across * self.tile] = tiled
        return self._on_sphere(delta)

    def propose(self, best: Tensor, numbers: Tensor, side: int) -> Tensor:
        """Empty two squares; put their norm and what is left of eps into the first, as what it was plus a bump."""
        delta = best - self.x
        left = (self.threat.radius**2 - _squared(delta, (1, 2, 3))).clamp_min(0) / delta.shape[1]
        one, other = self._square(numbers[:, 0:2], side), self._square(numbers[:, 2:4], side)
        old = delta[one]
        delta[one] = 0
        norm = _squared(old) + _squared(delta[other])
        delta[other] = 0
        new = self._bumps(numbers[:, 4:], side) + old / (_squared(old).sqrt() + 1e-12)
        delta[one] = new / (_squared(new).sqrt() + 1e-12) * (left + norm).sqrt()
        return self._on_sphere(delta)

    def _square(self, numbers: Tensor, side: int) -> tuple[Tensor, ...]:
        """The indices of a square of each image, in all channels."""
        count, channels, height, width = self.x.shape
        steps = torch.arange(side, device=self.x.device)
        rows = corner(numbers[:, :1], side, height) + steps
        columns = corner(numbers[:, 1:], side, width) + steps
        images = torch.arange(count, device=self.x.device).view(-1, 1, 1, 1)
        every = torch.arange(channels, device=self.x.device).view(1, -1, 1, 1)
        return images, every, rows[:, None, :, None], columns[:, None, None, :]

    def _bumps(self, numbers: Tensor, side: int) -> Tensor:
        """A bump per row of numbers: the first turns it, the others are its sign in each channel."""
        shape = bump(side).to(self.x)
        turned = torch.where(numbers[:, 0, None, None] > 0.5, shape.T, shape)
        signs = (numbers[:, 1:] >= 0.5).to(self.x) * 2 - 1
        return turned[:, None] * signs[:, :, None, None]

    def _on_sphere(self, delta: Tensor) -> Tensor:
        """x plus the perturbation scaled to the norm eps, cut by the pixel box."""
        scale = self.threat.radius / (_squared(delta, (1, 2, 3)).sqrt() + 1e-12)
        return self.threat.clamp(self.x + scale * delta)


@cache
def bump(side: int) -> Tensor:
    """A positive pyramid over a negative one, of unit norm together (Eq. 2 of the paper)."""
    upper, lower = _pyramid(side // 2, side), _pyramid(side - side // 2, side)
    return _unit(torch.cat([upper, -lower]))


def _pyramid(height: int, width: int) -> Tensor:
    """The sum of 1 / (k + 1)^2 over k >= d, d the larger of a pixel's distances to the middle row and column."""
    away = [(torch.arange(length) - length // 2).abs() for length in (height, width)]
    distance = torch.maximum(away[0][:, None], away[1][None, :])
    terms = 1.0 / torch.arange(1, max(height // 2, width // 2) + 2) ** 2
    return _unit(terms.flip(0).cumsum(0).flip(0)[distance])


def _unit(values: Tensor) -> Tensor:
    unit: Tensor = values / values.norm().clamp_min(1e-12)
    return unit


def _squared(values: Tensor, dims: tuple[int, ...] = (2, 3)) -> Tensor:
    return (values * values).sum(dims, keepdim=True)
