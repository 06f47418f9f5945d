"""AutoAttack, the field's common yardstick, through the package `pyautoattack`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from atent.attacks.external.libraries import Opaque, import_library, lent, reported
from atent.attacks.protocols import named
from atent.inputs import checked
from atent.methods import Count, method
from atent.progress import say
from atent.threat import Threat

VERSIONS = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
# The DLR loss divides by a difference of the first and third logit, its targeted form by one of the third and fourth.
CLASSES_NEEDED = {"apgd-t": 4, "apgd-dlr": 3}
INSTEAD = {"apgd-t": "apgd-dlr"}


@method
class AutoAttack:
    """AutoAttack: APGD on cross-entropy, targeted APGD on DLR, targeted FAB, then Square on what is left.

    Croce & Hein 2020, https://arxiv.org/abs/2003.01690. `rand` is for networks with randomness in them. With few
    classes the targeted APGD, which needs four, is replaced or left out, and a line says so.
    """

    version: Literal["standard", "plus", "rand"] = "standard"
    steps: Count = 100
    queries: Count = 5000

    def __post_init__(self) -> None:
        import_library("pyautoattack", "pyautoattack")

    @property
    def title(self) -> str:
        return named("AutoAttack", self, said=())

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        points = x.clone()
        with checked(model, x, y, threat) as threat:
            if threat.eps == 0:
                return points
            with (
                lent(model, "autoattack", generator) as seed,
                _overheard() as log,
                reported(model, lambda passes, images: f"{log.part}, {images} images left, {passes:,} passes"),
            ):
                with torch.no_grad():
                    logits = model(x)
                right = logits.argmax(1) == y
                if right.any():
                    points[right] = self._search(model, x[right], y[right], threat, logits.shape[1], seed).to(x)
            return points

    def _search(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, classes: int, seed: int) -> Tensor:
        library = import_library("pyautoattack", "pyautoattack")
        norm = "Linf" if threat.norm == "linf" else "L2"
        suite = library.AutoAttack(
            Opaque(model), norm=norm, eps=threat.eps, seed=seed, device=x.device, version=self.version
        )
        suite.attacks_to_run = list(parts(self.version, classes))
        suite.apgd.n_iter = suite.apgd_targeted.n_iter = suite.fab.n_iter = self.steps
        suite.square.n_queries = self.queries
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = min(9, classes - 1)
        found, _ = suite.run_standard_evaluation(x.contiguous(), y, batch_size=len(x))
        return found  # type: ignore[no-any-return]


@cache
def parts(version: str, classes: int) -> tuple[str, ...]:
    """The attacks of a version, those not defined for so few classes replaced or left out; a line says so, once."""
    wanted, chosen = VERSIONS[version], []
    for part in wanted:
        defined = part if classes >= CLASSES_NEEDED.get(part, 2) else INSTEAD.get(part)
        if defined and classes >= CLASSES_NEEDED.get(defined, 2) and defined not in chosen:
            chosen.append(defined)
    missing = [part for part in wanted if part not in chosen]
    if missing:
        words = f"{', '.join(missing)} needs more; running {', '.join(chosen)}"
        say(f"AutoAttack with {classes} classes: {words}")
    return tuple(chosen)


class _Overheard(logging.Filter):
    """Drops every message of AutoAttack's log, whose warnings our checks give in their own words; keeps its `part`.

    The log names each part when it starts. To read it there leaves the library's code and its numbers as they are.
    """

    part = "checks"

    def filter(self, record: logging.LogRecord) -> bool:
        action, _, name = record.getMessage().partition(" ")
        if action == "running":
            self.part = name
        return False


@contextmanager
def _overheard() -> Iterator[_Overheard]:
    log, heard = logging.getLogger("auto-attack"), _Overheard()
    level = log.level
    log.addFilter(heard)
    log.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        log.setLevel(level)
        log.removeFilter(heard)
