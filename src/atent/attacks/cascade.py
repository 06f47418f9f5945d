"""Several attacks, one after the other, each on the images that the earlier ones left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atent.attacks.protocols import Attack, Selective, attack_each, title_of, within
from atent.inputs import checked
from atent.network import borrowed, predict
from atent.progress import detail
from atent.randomness import spawn
from atent.threat import Threat

NONE = -1


@dataclass(frozen=True)
class Cascade:
    """Attack with the first; attack what is still classified correctly with the second; and so on.

    An image is robust only if every attack fails on it, so the order changes the cost and not the verdict. Put the
    cheapest first. `attacks` are the attacks; `settings` the table that they were made of, for the record.
    """

    attacks: tuple[Attack, ...]
    settings: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def title(self) -> str:
        return " + ".join(self.titles)

    @property
    def titles(self) -> list[str]:
        return [title_of(attack) for attack in self.attacks]

    def check(self, model: nn.Module, threat: Threat) -> None:
        """Refuse what one of the attacks refuses."""
        for attack in self.attacks:
            if isinstance(attack, Selective):
                attack.check(model, threat)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        return self.each(model, x, y, threat, spawn(generator, len(x)))

    def each(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> Tensor:
        return self.staged(model, x, y, threat, generators)[0]

    def staged(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, list[int]]:
        """The points, and for each the number of the attack that found it misclassified, or NONE.

        An attack that has no `each` draws from the first image's generator: its points depend on the whole batch.
        """
        with checked(model, x, y, threat) as threat, borrowed(model):
            x_adv, by = x.clone(), torch.full((len(x),), NONE)
            left = (predict(model, x) == y).nonzero()[:, 0]
            for number, attack in enumerate(self.attacks):
                if len(left) == 0:
                    break
                detail(f"{title_of(attack)}: {len(left)} of {len(x)} images left")
                mine = [generators[k] for k in left.tolist()]
                points = attack_each(attack, model, x[left].clone(), y[left].clone(), threat, mine)
                inside = within(threat, points, x[left])
                x_adv[left[inside]] = points[inside]
                broken = inside & (predict(model, points) != y[left])
                by[left[broken].cpu()] = number
                left = left[~broken]
        return x_adv, by.tolist()
