"""Rows of a random sample: the images that a cheap attack left, in random order, attacked by an expensive one."""

from typing import Any

from pydantic import TypeAdapter

from atent.methods import Count, Fraction, Whole
from atent.storage.row_format import Kind
from atent.storage.rows import AttackHeader, Row


class SampleHeader(AttackHeader):
    """The settings that determine a sample: `order` is the random order of the survivors, drawn with `seed`.

    `whole` is the number of images that the `first` attack attacked; `confidence` is that
    of the interval, which changes no row.
    """

    examples: Whole  # no row where no image survived the first attack
    whole: Count
    first: dict[str, Any]
    confidence: Fraction


SAMPLE = Kind("attack", TypeAdapter(SampleHeader), TypeAdapter(Row), own_folder="sample")
