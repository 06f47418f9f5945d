"""The index of the pretrained networks. `zoo:NAME` names one wherever a run or weights can be named."""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from atent.errors import UserError, unknown
from atent.methods import Count, Scale, explain
from atent.storage.files import read_json
from atent.storage.rows import Rate, ThreatText
from atent.threat import Threat

FOLDER = Path(__file__).parent
PREFIX = "zoo:"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class Result(BaseModel):
    """An accuracy of the stored weights, with its 95 % interval: a record of `atent show --json`, made from rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["attack", "worst case", "estimate", "certificate"]
    variant: str | None
    data: str
    threat: ThreatText
    method: str
    images: Count
    clean: Share | None
    robust: Share
    low: Share
    high: Share


class Entry(BaseModel):
    """A pretrained network.

    `sha256` is that of its file, `weights` that of its weights in float32, as headers of rows state it. Every setting
    of the training is in the header of the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Digest
    weights: Digest
    bytes: Count
    parameters: Count
    model: str
    data: str
    threat: ThreatText
    smooth: Scale
    defense: str
    results: tuple[Result, ...] = ()

    @property
    def headline(self) -> Result | None:
        """The result to show first: at the threat of the training, on most images, of these an estimate, or the lowest.

        Of a network that was trained to be smoothed, it is the accuracy certified there or at the next smaller radius.
        """
        ball = Threat.parse(self.threat)
        mine = [(one, Threat.parse(one.threat)) for one in self.results if one.data == self.data]
        proven = [one for one in mine if one[0].kind == "certificate" and one[1].norm == ball.norm]
        if self.smooth and (within := [one for one in proven if one[1].eps <= ball.eps]):
            return max(within, key=lambda one: (one[1].eps, one[0].images))[0]
        attacked = [one for one, threat in mine if one.kind != "certificate" and threat == ball]
        return max(attacked, key=lambda one: (one.images, one.kind == "estimate", -one.robust), default=None)

    @property
    def clean(self) -> float | None:
        """The accuracy next to the headline: without an attack, or certified at radius 0."""
        first = self.headline
        if first is None:
            return None
        if first.clean is not None:
            return first.clean
        same = [one for one in self.results if (one.data, one.images) == (first.data, first.images)]
        if first.kind == "certificate":
            at_zero = (one for one in same if one.kind == first.kind and Threat.parse(one.threat).eps == 0)
            return next((one.robust for one in at_zero), None)
        return next((one.clean for one in same if one.clean is not None), None)  # an estimate has none of its own


_INDEX = TypeAdapter(dict[str, Entry])


def is_zoo(name: object) -> bool:
    """Whether this names a pretrained network: `zoo:NAME`."""
    return str(name).startswith(PREFIX)


def read_index() -> dict[str, Entry]:
    """Every pretrained network by its name."""
    path = FOLDER / "index.json"
    try:
        return _INDEX.validate_python(read_json(path))
    except ValidationError as error:
        raise UserError(f"{explain(error, f'{path} is damaged')}; install atent again") from None


def name_of(network: object) -> str:
    """NAME of `zoo:NAME`."""
    return str(network).removeprefix(PREFIX)


def entry_of(network: object) -> Entry:
    """The entry of `zoo:NAME`; an unknown name is refused with the known ones."""
    known, name = read_index(), name_of(network)
    if name not in known:
        raise unknown("network of the zoo", name, known or ["none yet"])
    return known[name]


def weights_file(network: object) -> Path:
    """The file of `zoo:NAME`, a checkpoint of ours. Its sha256 is compared with the index."""
    entry, path = entry_of(network), FOLDER / f"{name_of(network)}.safetensors"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{PREFIX}{name_of(network)}: cannot read {path}: {error.strerror}") from None
    if found != entry.sha256:
        raise UserError(
            f"{PREFIX}{name_of(network)}: {path} is damaged: its sha256 is {found[:12]}..., the index has "
            f"{entry.sha256[:12]}...; install atent again"
        )
    return path


def card_of(network: object) -> str:
    """The model card of `zoo:NAME`, in Markdown with a YAML header."""
    entry_of(network)
    path = FOLDER / f"{name_of(network)}.md"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{PREFIX}{name_of(network)}: cannot read its card {path}: {error}") from None


def own_folder(network: object) -> Path:
    """Where rows of `zoo:NAME` go by default."""
    return Path("runs") / f"zoo-{name_of(network)}"


def rows_folder(run: str | Path) -> Path:
    """The folder of a run's rows. Of `zoo:NAME` it is the default one, which must exist."""
    if not is_zoo(run):
        return Path(run)
    entry_of(run)
    folder = own_folder(run)
    if not folder.is_dir():
        published = f"`atent zoo {name_of(run)}` prints the published ones"
        raise UserError(f"{run} has no rows in {folder}; `atent attack {run}` makes them, {published}")
    return folder


def interval(result: Result) -> Rate:
    """The accuracy with its interval, as tables print it."""
    return Rate(result.robust, result.low, result.high)


def as_record(result: Result) -> dict[str, Any]:
    """The result as `atent show --json` gives it."""
    return result.model_dump(mode="json")
