"""Damage to files: bytes changed, cut and added; JSON of another type; another thing in a file's place."""

import json
import os
from pathlib import Path
from typing import Any

from campaign.values import strange, to_json
from campaign.verdict import Draw


def harm(draw: Draw, path: Path) -> str:
    """Damage a file in place; returns in which way."""
    what = draw.random()
    if what < 0.03:
        return replaced(draw, path)
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and what < 0.75:
        return rewritten(draw, path, content)
    if path.suffix == ".safetensors" and what < 0.4:
        return reheaded(draw, path, content)
    way, changed = damaged(draw, content)
    path.write_bytes(changed)
    return way


def damaged(draw: Draw, content: bytes) -> tuple[str, bytes]:
    """Bytes changed, removed or added."""
    place, size = draw.randrange(len(content) + 1), draw.choice([1, 2, 16, 512])
    ways = {
        "cut": content[:place],
        "cut at the end": content[:-size],
        "bit": flipped(draw, content, 1),
        "bits": flipped(draw, content, 20),
        "zeros inside": content[:place] + bytes(size) + content[place + size :],
        "zeros at the end": content + bytes(draw.choice([1, 512, 4096])),
        "zeros instead": bytes(len(content)),
        "empty": b"",
        "lost": content[:place] + content[place + size :],
        "doubled": content + content,
        "doubled inside": content[:place] + content[max(0, place - size) :],
        "noise": content[:place] + draw.randbytes(size) + content[place:],
        "noise instead": draw.randbytes(min(len(content), 3000)),
        "lines": b"\n" * size + content,
        "text": b"hello\n",
    }
    way = draw.choice(list(ways))
    return way, ways[way]


def flipped(draw: Draw, content: bytes, count: int) -> bytes:
    changed = bytearray(content)
    for _ in range(count if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def rewritten(draw: Draw, path: Path, content: bytes) -> str:
    """Another value somewhere in the JSON, or in the JSON of one line."""
    lines = content.splitlines(keepends=True) if path.suffix == ".jsonl" else [content]
    number = draw.choice([0, draw.randrange(len(lines))])
    table = json.loads(lines[number])
    way, changed = altered(draw, table)
    lines[number] = to_json(changed) + b"\n"
    path.write_bytes(b"".join(lines))
    return f"line {number + 1}: {way}"


def altered(draw: Draw, value: Any) -> tuple[str, Any]:
    """The JSON with one value replaced, removed, added or renamed, and where."""
    path: list[Any] = []
    inside = value
    while isinstance(inside, dict | list) and inside and draw.random() < 0.8:
        key = draw.choice(list(inside) if isinstance(inside, dict) else list(range(len(inside))))
        path.append(key)
        inside = inside[key]
    if not path:
        return "all", strange(draw)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    what, key = draw.random(), path[-1]
    if what < 0.2:
        del parent[key]
        return f"without {path}", value
    if what < 0.3 and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
        return f"{path} renamed", value
    if what < 0.35 and isinstance(parent, dict):
        parent["more"] = strange(draw)
        return f"more in {path[:-1]}", value
    parent[key] = None if what < 0.4 else strange(draw)
    return f"{path} = {type(parent[key]).__name__}", value


def reheaded(draw: Draw, path: Path, content: bytes) -> str:
    """Another JSON in the header of a safetensors file, with or without its checksum."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    about = header.get("__metadata__", {})
    if draw.random() < 0.7:
        about.pop("atent-sha256", None)
    if draw.random() < 0.7 and "atent" in about:
        way, info = altered(draw, json.loads(about["atent"]))
        about["atent"] = to_json(info).decode()
    else:
        way, header = altered(draw, header)
    words = to_json(header)
    path.write_bytes(len(words).to_bytes(8, "little") + words + content[8 + size :])
    return f"header: {way}"


def replaced(draw: Draw, path: Path) -> str:
    """Something else with the name of the file."""
    what = draw.choice(["gone", "folder", "link to itself", "link to nothing", "fifo"])
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what.startswith("link"):
        path.symlink_to(path.name if what == "link to itself" else "nothing")
    elif what == "fifo":
        os.mkfifo(path)
    return what
