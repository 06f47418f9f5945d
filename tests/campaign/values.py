"""Values that a careful program refuses, and some that it accepts."""

import json
from typing import Any

from campaign.verdict import Draw

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**7, 10**9, 10**12, 10**400,
    0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 5e-324, 1e-45, 1e-9, 1e9, 1e39, 1e300, 1e308, -1e308,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
WORDS = [
    "", " ", "0", "1", "auto", "none", "None", "nan", "true", "off", "x", ":", "::", "a:b", "os:system", "os:", ":x",
    "no.such:thing",
    "campaign.networks:flat", "campaign.networks:raises", "campaign.networks:exits", ".",
    "linf:8/255", "linf:nan", "l2:1/0", "linf:1e400", "l2:" + "9" * 400, "linf:-1",
    "a\nb", "\t", "\u2028", "\x1b[31m", "\U0001f4a5", "é", "%s%n", "{}", "a" * 5000, "*", "-", "--",
]  # fmt: skip


def strange(draw: Draw, depth: int = 0) -> Any:
    """A number, a word, a list or a table, of no particular use."""
    what = draw.random()
    if what < 0.45:
        return draw.choice(NUMBERS)
    if what < 0.6:
        return draw.choice(WORDS)
    if what < 0.68:
        return draw.choice([True, False])
    if depth > 2:
        return []
    if what < 0.84:
        return [strange(draw, depth + 1) for _ in range(draw.choice([0, 1, 2, 3, 30]))]
    if what < 0.86:
        return nested(draw.choice([10, 200, 3000]))
    keys = ["name", "x", "steps", "", "é", "a.b", "sigma", "attacks", "tensor", "list"]
    return {draw.choice(keys): strange(draw, depth + 1) for _ in range(draw.choice([0, 1, 2, 3]))}


def to_json(value: Any) -> bytes:
    """JSON of values that may be nested deeper than Python's own writer goes."""
    if isinstance(value, dict):
        return (
            b"{" + b", ".join(json.dumps(str(key)).encode() + b": " + to_json(one) for key, one in value.items()) + b"}"
        )
    opened = 0
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        opened, value = opened + 1, value[0]
    if isinstance(value, list):
        return b"[" * opened + b"[" + b", ".join(map(to_json, value)) + b"]" + b"]" * opened
    return json.dumps(value).encode()


def as_text(value: Any) -> str:
    """A value as a person types it; a deep one in JSON."""
    try:
        return str(value)
    except RecursionError:
        return to_json(value).decode()


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found
