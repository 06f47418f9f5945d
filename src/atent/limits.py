"""Numbers that fields may have. The largest ones are beyond any use; they keep a typing error from filling the memory.

`MOST` and `LARGEST` are not printed with a field: nobody needs to know them who does not exceed them.
"""

from atent.errors import UserError, shown

MOST = 10**8
LARGEST = 1e9
COPIES = 10_000  # noisy copies of an image in one pass: each takes the memory of the image
THREADS = 256
PIXELS = 8192  # of a side


def check_range(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside these limits; None is a default."""
    if value is not None and not least <= value <= most:
        end = f"to {_digits(most)}" if value > most else "or more"
        raise UserError(f"{name} {shown(value)}; allowed: {_digits(least)} {end}")


def _digits(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
