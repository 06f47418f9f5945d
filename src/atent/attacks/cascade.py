"""Several attacks in sequence, each on the images that the earlier ones left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atent.attacks.protocols import Attack, PerImage, Selective, attack_each, title_of
from atent.inputs import check_points, checked
from atent.methods import is_single_step
from atent.network import answers, borrowed, predict, repeat
from atent.progress import detail
from atent.randomness import branch
from atent.threat import Threat, check_threat


class Staged(NamedTuple):
    """The points of a cascade; for each the title of the attack that broke the image, or None, and its prediction.

    The prediction is that of the attack's own batch: in another batch, rounding could undo it. -1 where none broke it.
    """

    points: Tensor
    by: list[str | None]
    seen: Tensor


@dataclass(frozen=True)
class Cascade:
    """The first attack on all images, the second on those that are still classified correctly, and so on.

    An image is robust only if every attack fails on it: the worst case over the attacks. So the order changes the cost
    and not the verdict; put the cheapest first. Tables show the name that it is `called` by, or those of its attacks.
    `settings` is the table that it was made of, for the record.

    Each image has its own generator, from whose seed the generator of each attack is derived by the attack's title. So
    an attack draws the same numbers for an image whichever attacks came before. An attack that is not `PerImage` draws
    from the generator of its batch's first image.
    """

    attacks: tuple[Attack, ...]
    called: str = ""
    settings: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    titles: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "titles", tuple(map(title_of, self.attacks)))  # the object is frozen

    @property
    def title(self) -> str:
        return self.called or " + ".join(self.titles)

    @property
    def single_step(self) -> bool:
        return all(map(is_single_step, self.attacks))

    def check_threat(self, threat: Threat) -> None:
        """Refuse a threat that one of the attacks refuses."""
        for attack in self.attacks:
            check_threat(attack, threat)

    def check(self, model: nn.Module, threat: Threat) -> None:
        """Refuse what one of the attacks refuses."""
        for attack in self.attacks:
            if isinstance(attack, Selective):
                attack.check(model, threat)

    __call__ = attack_each

    def each(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> Tensor:
        return self.staged(model, x, y, threat, generators).points

    def staged(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> Staged:
        """The points, and which attack broke each image."""
        with checked(model, x, y, threat) as threat:
            x_adv, by, seen = x.clone(), list[str | None]([None] * len(x)), torch.full_like(y, -1)
            with borrowed(model):
                logits = answers(model, x)
                random = repeat(model, x[:8], logits[:8]).random  # then one prediction proves little: attack all
                left = ((logits.argmax(1) == y) | random).nonzero()[:, 0]
            for attack, title in zip(self.attacks, self.titles, strict=True):
                if len(left) == 0:
                    break
                detail(f"{title}, {len(left)} of {len(x)} images left")
                mine = [branch(generators[k], title) for k in left.tolist()]
                points = _attack(attack, model, x[left], y[left], threat, mine)
                _, near = check_points(points, x[left], threat, title)
                near = near.to(left.device)
                x_adv[left[near]] = points[near]
                with borrowed(model):
                    predicted = predict(model, points)
                broken = near & (predicted != y[left])
                seen[left[broken]] = predicted[broken]
                for k in left[broken].tolist():
                    by[k] = title
                left = left[~broken]
        return Staged(x_adv, by, seen)


def _attack(
    attack: Attack, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generators: Sequence[torch.Generator]
) -> Tensor:
    if isinstance(attack, PerImage):
        return attack.each(model, x, y, threat, generators)
    return attack(model, x, y, threat, generators[0])
