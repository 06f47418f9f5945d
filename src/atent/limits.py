"""Numbers that fields may have. The largest ones are beyond any use; they keep a typing error from filling the memory.

`MOST` and `LARGEST` are not printed with a field: nobody needs to know them who does not exceed them.
"""

from typing import Annotated

from pydantic import Field

from atent.errors import UserError, shown

MOST = 10**8
LARGEST = 1e9
COPIES = 10_000  # noisy copies of an image in one pass: each takes the memory of the image
THREADS = 256
PIXELS = 8192  # of a side

Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Copies = Annotated[int, Field(ge=1, le=COPIES)]
Side = Annotated[int, Field(ge=1, le=PIXELS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Size = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Tolerance = Annotated[float, Field(ge=0, lt=1)]


def check_range(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside these limits; None is a default."""
    if value is not None and not least <= value <= most:
        raise UserError(f"{name} {shown(value)}; allowed: {_digits(least)} to {_digits(most)}")


def _digits(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
