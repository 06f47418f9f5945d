"""Rows of attacks, one per attacked image, and the accuracies computed from them."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from statistics import median
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import AfterValidator, ConfigDict, TypeAdapter, with_config
from scipy.stats import binomtest

from atent.methods import Count, Scale, Size, Whole
from atent.storage.row_format import Header, Indexed, Kind
from atent.threat import Threat


def _check_threat(text: str) -> str:
    Threat.parse(text)
    return text


ThreatText = Annotated[str, AfterValidator(_check_threat)]


class AttackHeader(Header):
    """The settings that determine the rows of an attack; `smooth` (sigma) and `draws` if the network was smoothed.

    Older files have `judged` instead, such as "smoothed 0.5".
    """

    threat: ThreatText
    attack: NotRequired[dict[str, Any]]
    split: NotRequired[str]
    seed: NotRequired[int]
    batch: NotRequired[Count]
    smooth: NotRequired[Size]
    draws: NotRequired[Count]
    judged: NotRequired[str]


def variant_of(header: Mapping[str, Any]) -> str:
    """How the attacked network was smoothed, and in which half precision it ran; empty if neither."""
    smoothed = f"smoothed {header['smooth']:g}, {header['draws']} draws" if "smooth" in header else ""
    return ", ".join(filter(None, (smoothed or header.get("judged", ""), header.get("amp", ""))))


@with_config(ConfigDict(extra="forbid"))
class Row(Indexed):
    """One attacked example: the predictions for x and for x_adv, and the distance of x_adv.

    Attacks that search for the nearest misclassified point also record its `distance`, null where they found none.
    Of several attacks in sequence, `by` is the title of the one that broke the image, null where none did.
    """

    label: Whole
    clean: Whole
    adversarial: Whole
    size: Scale
    robust: bool
    distance: NotRequired[Scale | None]
    by: NotRequired[str | None]


ATTACK = Kind("attack", TypeAdapter(AttackHeader), TypeAdapter(Row))


class Rate(NamedTuple):
    """A share of examples with its 95 % Wilson interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """In percent. The ends have one digit; one that rounding would move past the value is rounded outwards."""
        value, low, high = (100 * number for number in self)
        low = min(round(low, 1), math.floor(round(10 * value, 1)) / 10)
        high = max(round(high, 1), math.ceil(round(10 * value, 1)) / 10)
        return f"{value:.2f} [{low:.1f}, {high:.1f}]"


def rate(hits: Iterable[bool]) -> Rate:
    """The share of hits, with its Wilson interval."""
    values = list(hits)
    return rate_of(sum(values) / len(values), len(values))


@lru_cache(maxsize=4096)
def rate_of(share: float, count: int) -> Rate:
    """A share of `count` examples, with its Wilson interval."""
    interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return Rate(share, float(interval.low), float(interval.high))


def clean_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["clean"] == row["label"] for row in rows)


def robust_rate(rows: Iterable[Row]) -> Rate:
    return rate(row["robust"] for row in rows)


def median_distance(rows: Iterable[Row]) -> float | None:
    """The median over correctly classified examples; infinite if no point was found for half. None: not measured."""
    right = [row["distance"] for row in rows if "distance" in row and row["clean"] == row["label"]]
    return median(float("inf") if distance is None else distance for distance in right) if right else None
