"""What a table consists of: networks, measures of them, rows with the paper's numbers. Data only; nothing runs here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

BudgetName = Literal["smoke", "cpu", "full"]
BUDGETS: tuple[BudgetName, ...] = ("smoke", "cpu", "full")
Changes = Mapping[str, Any]
SMOKE_IMAGES, SMOKE_CERTIFIED = 10, 2
SMOKE_WITHIN = 60.0  # points: the first phase alone gives this
SMOKE_DRAWS, SMOKE_COVERS = 200, "linf:0.0005"  # few draws prove small radii only
FULL_CERTIFIED = 500


@dataclass(frozen=True)
class Network:
    """A training: a recipe with its changes at each budget, and the network whose weights it starts from.

    `full` has no changes where the recipe is the paper's setting. `smoke` has those of `cpu` and its own on top. `zoo`
    is the pretrained network of this training at `cpu`.
    """

    recipe: str
    cpu: Changes
    full: Changes = field(default_factory=dict)
    start: str | None = None
    zoo: str = ""


@dataclass(frozen=True)
class Measure:
    """What is measured on a network: an attack, `strong` to +- `within` points, a certificate, or clean accuracy.

    `images` are the first N test images at `cpu` (None: all); of a certificate, N images evenly spread. `threat` is by
    default the recipe's. Of a certificate, `attack` has sigma and n, and the accuracy is at the radius that covers
    `threat`, or at 0 without one; every certificate is made for `covers`.
    """

    kind: Literal["clean", "attack", "strong", "certified"]
    attack: Changes = field(default_factory=dict)
    threat: str = ""
    images: int | None = None
    within: float = 1.0
    covers: str = ""

    def at(self, budget: BudgetName) -> "Measure":
        """The same measure at the size of a budget."""
        certified = self.kind == "certified"
        if budget == "full":
            return replace(self, images=FULL_CERTIFIED if certified else None)
        if budget == "cpu" or self.kind == "clean":
            return self
        smaller = replace(self, images=SMOKE_IMAGES, within=SMOKE_WITHIN, attack=_shortened(self.attack))
        if not certified:
            return smaller
        return replace(smaller, images=SMOKE_CERTIFIED, covers=SMOKE_COVERS, threat=self.threat and SMOKE_COVERS)

    @property
    def to_do(self) -> "Measure | None":
        """What has to be run: one certificate gives all radii, and every attack gives clean accuracy."""
        if self.kind == "clean":
            return None
        return replace(self, threat="") if self.kind == "certified" else self


def _shortened(attack: Changes) -> dict[str, Any]:
    short = {"steps": 2, "restarts": 1, "n": SMOKE_DRAWS}
    searches = {"searches": 1} if str(attack.get("name")).startswith("cw-") else {}
    few = {"steps": 2} if searches or attack.get("name") == "deepfool" else {}
    return {key: short.get(key, value) for key, value in attack.items()} | few | searches


@dataclass(frozen=True)
class Row:
    """A row of a table: a network, what is measured in each column, and the paper's numbers (percent).

    `weights` are those of the best epoch on held-out images, or the last. `curve` has the authors' (clean, robust)
    after each epoch, to be compared with ours.
    """

    label: str
    network: str
    cells: Mapping[str, Measure]
    paper: Mapping[str, float] = field(default_factory=dict)
    weights: Literal["best", "last"] = "best"
    budgets: tuple[BudgetName, ...] = BUDGETS
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the rows: that of the network, or one of its own for the last weights."""
        return self.network if self.weights == "best" else f"{self.network}-last"


@dataclass(frozen=True)
class Table:
    """A table, or a part of one: its columns, its rows, and sentences on where the paper's numbers do not stand."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def rows_at(self, budget: BudgetName) -> list[Row]:
        return [row for row in self.rows if budget in row.budgets]


@dataclass(frozen=True)
class Figure:
    """A figure, and rows of networks that it needs: their logs, their measures and, with `weights`, their weights."""

    title: str
    rows: tuple[Row, ...] = ()
    weights: bool = False
