"""MMA: move the decision boundary away from each example, by a distance that depends on the example."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from atent.defenses.protocols import Term
from atent.defenses.worst_point import worst_point
from atent.inputs import checked
from atent.losses import cross_entropy, soft_margin
from atent.methods import Count, Size, Start, method
from atent.network import borrowed
from atent.threat import Threat, over_pixels

_BISECTIONS, _BEYOND = 10, 1.05  # of the paper: ten, up to 1.05 d_max


@method
class Mma:
    """Max-margin adversarial training: cross-entropy at each example's boundary point, if it is near.

        loss = CE(f(x), y) / 3 + 2/3 * ( CE(f(x), y)       if x is misclassified
                                         CE(f(x'), y)      if x is correct and its margin is below d_max
                                         0                 if its margin is larger )

    x' = x + margin u is the point where the line along u leaves the correct class (ten bisections up to 1.05 d_max). u
    is the direction of the last point of PGD on the soft logit margin. The radius of that PGD is the margin found when
    the example was last seen, and at least least * eps. d_max = hinge * eps; both follow eps in a warm-up.

    Ding et al. 2020, https://arxiv.org/abs/1812.02637. Differs from the authors' code in: the prediction in eval
    mode decides whether x is misclassified (theirs: the sign of the soft margin, at x in train mode).
    """

    hinge: Size = 1.5
    least: Size = 1 / 3
    steps: Count = 10
    step: Size | None = None
    reach: Size = 2.5
    start: Start = "uniform"

    def __post_init__(self) -> None:
        if self.least > _BEYOND * self.hinge:
            raise ValueError(f"least {self.least:g} exceeds {_BEYOND} * hinge = {_BEYOND * self.hinge:g}")

    def new_memory(self, count: int) -> Tensor:
        """The margin of each training example when it was last seen; 0 before that."""
        return torch.zeros(count)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat | str,
        generator: torch.Generator,
        memory: Tensor | None = None,
    ) -> Iterator[Term]:
        """With a `memory` of margins, it is updated in place; without one, every search uses the least radius."""
        with checked(model, x, y, threat) as threat:
            seen = x.new_zeros(len(x)) if memory is None else memory.to(x.dtype)
            with borrowed(model), torch.no_grad():
                right = model(x).argmax(1) == y
                boundary, margin = self._boundary(model, x, y, threat, generator, seen)
            if memory is not None:
                memory.copy_(margin * right)
            x_adv = torch.where(over_pixels(right, x), boundary, x)
            counts = ~right | (margin < self.hinge * threat.eps)

            clean = model(x)
            yield Term(cross_entropy(clean, y) / 3, clean, x)
            logits = model(x_adv)
            yield Term(2 / 3 * (counts * cross_entropy(logits, y)), logits, x_adv)

    def _boundary(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The nearest misclassified point found in PGD's direction, and its distance; if none, the furthest point."""
        furthest = _BEYOND * self.hinge * threat.eps
        ball = threat.with_radii(seen.clamp(self.least * threat.eps, furthest), x)
        search = partial(worst_point, steps=self.steps, step=self.step, reach=self.reach, start=self.start)
        delta = search(model, x, y, ball, generator, loss=soft_margin) - x
        unit = delta / over_pixels(threat.size(delta).clamp_min(1e-12), x)

        def along(distance: Tensor) -> Tensor:
            return threat.clamp(x + over_pixels(distance, x) * unit)

        near, far = torch.zeros_like(seen), torch.full_like(seen, furthest)
        for _ in range(_BISECTIONS):
            middle = (near + far) / 2
            wrong = model(along(middle)).argmax(1) != y
            near, far = torch.where(wrong, near, middle), torch.where(wrong, middle, far)
        return along(far), far
