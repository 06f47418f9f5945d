"""A recipe: everything that determines the result of a training. It is a TOML file, a built-in name, or a Recipe."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from atent.attacks import Attack, Pgd, make_attack
from atent.data.augmentation import Augmentation
from atent.defenses import DEFENSES, Defense, in_two_parts
from atent.errors import UserError, shown, unknown
from atent.methods import (
    Choice,
    Copies,
    Count,
    Scale,
    Seed,
    Side,
    chosen_by,
    completed,
    explain,
    field_names,
    imports,
    make,
    names_in,
    written_out,
)
from atent.models.accelerated import Precision
from atent.optim.optimizers import Optimizer
from atent.optim.outside import make_optimizer, make_rates
from atent.optim.schedule import AnySchedule, Rates, Schedule
from atent.storage.files import read_json
from atent.storage.recipe_files import read_recipe_file
from atent.storage.run import Run
from atent.threat import Threat, check_threat

_MAKERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "defense": partial(make, DEFENSES, kind="defense"),
    "optimizer": make_optimizer,
    "monitor": partial(make_attack, where="monitor"),
}
_UNNAMED = {"optimizer": {"name": "sgd"}, "monitor": {"name": "apgd"}}
_FIRST_MONITOR = {"name": "pgd", **asdict(Pgd(steps=20))}  # the default until 0.1.0.dev2
_FIRST_VALIDATION = 5000  # the default until "auto"


class Methods(NamedTuple):
    """The methods made from the tables of a recipe with these names."""

    defense: Defense
    optimizer: Optimizer
    monitor: Attack


class Recipe(BaseModel):
    """Data, network, threat, methods and schedule of one training. `defense`, `optimizer`, `monitor` name a method.

    Making a method checks its fields and fills in its defaults. The pydantic context `{"make": ...}` states which are
    made: "all" (a user names the recipe), imported ones too; "ours" (it is only shown); "none" (it is read from a run).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    model: str
    threat: str
    epochs: Count
    minutes: Annotated[float, Field(gt=0, le=525_600, allow_inf_nan=False)] | None = None
    recoveries: Annotated[int, Field(ge=0, le=10)] | None = None
    batch: Count = 128
    seed: Seed = 0
    validation: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = "auto"
    validation_seed: Seed | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    resize: Side | None = None
    white: Annotated[int, Field(ge=1, le=65535)] | None = None
    augment: Augmentation = "none"
    standardize: bool = False
    weights: str | None = None
    reset: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    awp: Scale = 0.0
    awp_start: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gibbs: Scale = 0.0
    amp: Precision = "off"
    sync_batchnorm: bool = False
    defense: dict[str, Any]
    optimizer: dict[str, Any] = {}
    schedule: AnySchedule = Schedule()
    monitor: dict[str, Any] = {"name": "apgd", "steps": 20}
    monitor_examples: Count = 1000
    smooth: Scale = 0.0
    monitor_draws: Copies = 16
    choose: Choice | None = None
    patience: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_smoothing(cls, table: Any) -> Any:
        """Recipes without the key `smooth` have sigma and draws in the table of the monitor smooth-pgd."""
        monitor = table.get("monitor") if isinstance(table, Mapping) and "smooth" not in table else None
        if not isinstance(monitor, Mapping) or monitor.get("name") != "smooth-pgd" or "sigma" not in monitor:
            return table
        kept = {key: value for key, value in monitor.items() if key not in ("sigma", "draws")}
        return {**table, "monitor": kept, "smooth": monitor["sigma"], "monitor_draws": monitor.get("draws", 16)}

    @field_validator("threat", mode="after")
    @classmethod
    def _parsed(cls, text: str) -> str:
        Threat.parse(text)
        return text

    @model_validator(mode="after")
    def _methods_written_out(self, info: ValidationInfo) -> "Recipe":
        for part in _MAKERS:
            table = {**_UNNAMED.get(part, {}), **getattr(self, part)}
            wanted = (info.context or {"make": "ours"})["make"]
            if wanted == "all" or (wanted == "ours" and not imports(table)):
                self._made[part] = _MAKERS[part](table)
                table = written_out(table, self._made[part])
            object.__setattr__(self, part, table)  # the recipe is frozen
        return self

    @model_validator(mode="after")
    def _recoveries_written_out(self) -> "Recipe":
        """A training with a budget recovers twice by default, any other never."""
        if self.recoveries is None:
            object.__setattr__(self, "recoveries", 2 if self.minutes else 0)
        return self

    @model_validator(mode="after")
    def _methods_fit_the_threat(self) -> "Recipe":
        """Refuse a method that would fail at the first batch, or at a small eps during the warm-up."""
        threat = self.make_threat()
        for method in map(self._made.get, ("defense", "monitor")):
            check_threat(method, threat)
        if isinstance(self.schedule, Schedule):
            check_threat(self._made.get("defense"), threat.scaled(self.schedule.eps_peak))
        if isinstance(self.schedule, Schedule) and self.schedule.eps_share(0.0) == 0:
            try:
                check_threat(self._made.get("defense"), threat.scaled(0.001))
            except ValueError as error:
                raise UserError(f"at a small eps during the warm-up, {error}; or set schedule.eps_warmup = 0") from None
        return self

    @model_validator(mode="after")
    def _settings_go_together(self) -> "Recipe":
        if self.patience is not None and self.validation == 0:
            raise UserError(f"patience = {self.patience} needs held-out images, but validation = 0")
        if "smooth-pgd" in names_in(self.monitor) and self.smooth == 0:
            raise UserError("monitor smooth-pgd needs a smoothed network; set smooth, the noise's standard deviation")
        if self.awp and "defense" in self._made:
            in_two_parts(self._made["defense"])
        if self.reset and self.weights is None:
            raise UserError(f"reset = {list(self.reset)} needs weights to start from; --weights FILE names them")
        return self

    @cached_property
    def _made(self) -> dict[str, Any]:
        """The methods made so far."""
        return {}

    @property
    def methods(self) -> Methods:
        """Defense, optimizer and monitor. Each is made once; a user's own method is imported."""
        for part, make_one in _MAKERS.items():
            if part not in self._made:
                self._made[part] = make_one(getattr(self, part))
        return Methods(**self._made)

    @property
    def split_seed(self) -> int:
        """The seed that decides which images are held out."""
        return self.seed if self.validation_seed is None else self.validation_seed

    @property
    def chosen_by(self) -> Choice:
        """The held-out accuracy that selects the best epoch: `choose` of the recipe, or the choice of the defense."""
        return self.choose or chosen_by(self.methods.defense)

    @cached_property
    def rates(self) -> Rates:
        """The learning rate and eps during training; a user's own schedule is imported."""
        return make_rates(self.schedule, self.methods.optimizer.lr)

    def make_threat(self) -> Threat:
        return Threat.parse(self.threat)

    def resuming(self, found: "Recipe") -> "Recipe":
        """This recipe for the run of `found`: an older run keeps the defaults of its time for keys that are not set."""
        older = {"monitor": _FIRST_MONITOR, "validation": _FIRST_VALIDATION}
        kept = {key: value for key, value in older.items() if getattr(found, key) == value}
        if not kept.keys() - self.model_fields_set:
            return self
        return parse_recipe({**kept, **self.model_dump(exclude_unset=True)}, "recipe", make="all")

    def different(self, found: "Recipe", methods: Mapping[str, object] | None = None) -> list[str]:
        """The keys in which two recipes differ as data. `methods` (default: those made so far) complete `found`."""
        ours, theirs = self.model_dump(mode="json"), found.model_dump(mode="json")
        if found.make_threat() == self.make_threat():
            theirs["threat"] = ours["threat"]  # however it is written
        for part, method in (methods or self._made).items():
            theirs[part] = completed(theirs[part], ours[part], method)
        return sorted(key for key in ours if ours[key] != theirs[key])

    def check_same(self, found: "Recipe", folder: Path) -> None:
        """Refuse to mix two recipes in one folder. No method of `found` is made."""
        if different := self.different(found, self.methods._asdict()):
            hint = "; --more-epochs N continues a finished training" if different == ["epochs"] else ""
            raise UserError(
                f"{folder} contains a run of another recipe (different: {', '.join(different)}); "
                f"give another --out, or remove that folder{hint}"
            )


def load_recipe(name: str, overrides: Mapping[str, Any] | None = None, *, build: bool = True) -> Recipe:
    """Read a recipe by its built-in name or its path; `overrides` has dotted keys: `{"defense.steps": 5}`.

    A user's own methods, `package.module:Name`, are imported and made, unless `build` is False.
    """
    table = read_recipe_file(name, overrides, _filled)
    return parse_recipe(table, f"recipe {name}", make="all" if build else "ours")


def parse_recipe(table: Mapping[str, Any], where: str, *, make: Literal["all", "ours", "none"] = "none") -> Recipe:
    """Check a table; the first error is reported in one line. `make`: which methods are made (see `Recipe`)."""
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: the recipe is {shown(table)}; expected a table")
    for part, kind in ((table, Recipe), (table.get("schedule"), Schedule)):
        for key in part if isinstance(part, Mapping) and not (kind is Schedule and imports(part)) else ():
            if key not in field_names(kind):
                raise unknown(f"{kind.__name__.lower()} key", key, field_names(kind), where)
    try:
        return Recipe.model_validate(table, context={"make": make})
    except ValidationError as error:
        raise UserError(explain(error, where)) from None


def recipe_of(run: Run) -> Recipe:
    return parse_recipe(read_json(run.recipe_file), str(run.recipe_file))


def _filled(defense: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields that are given to a defense, and those that they exclude: one kind of noise takes another's place."""
    return getattr(DEFENSES.get(defense), "one_noise", dict)(fields)
