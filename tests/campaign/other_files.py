"""Files of other programs: .npz, .pt, .safetensors, gzipped data sets and modules, damaged, huge and hostile."""

import gzip
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from atent.data.published import PACKAGED
from campaign.damage import damaged
from campaign.inside import command
from campaign.toy_run import NETWORK, RECIPE, prepare_run, to_toml
from campaign.verdict import Draw, Kind, Outcome, faults_of

MARK = "executed"
EVALUATE = ["--threads", "1", "--device", "cpu", "--set", "steps=1", "--out", "out", "--examples", "4"]
MODULES = {
    "raises": "raise RuntimeError('first\\nsecond')\n",
    "exits": "import sys\nsys.exit(7)\n",
    "syntax": "def network(:\n",
    "zeros": "\0\0",
    "recursion": "def f():\n    f()\nf()\n",
    "memory": "raise MemoryError\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "imports itself": "import own_module\nnetwork = own_module.network\n",
    "late": "def network(shape):\n    raise ValueError('a\\nb')\n",
    "leaves": "import sys\ndef network(shape):\n    sys.exit()\n",
    "text": "network = 'flat'\n",
    "class": "class network:\n    pass\n",
    "none": "def network(shape):\n    return None\n",
}
FORWARD = {
    "forward": "raise OSError(5, 'x\\ny')",
    "forward exits": "import sys; sys.exit(4)",
    "nan": "return self.w(x.flatten(1)) * float('nan')",
}
MODULES |= {
    name: "from torch import nn\nclass network(nn.Module):\n    def __init__(self, shape):\n"
    f"        super().__init__()\n        self.w = nn.Linear(36, 3)\n    def forward(self, x):\n        {line}\n"
    for name, line in FORWARD.items()
}


class Hostile:
    """Unpickled, it would leave a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARK}",)


def prepare(place: Path) -> None:
    prepare_run(place)
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        shutil.copy(PACKAGED / "mnist-small" / name, place / name)


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    for name in ("data.npz", "recipe.toml"):
        shutil.copy(prepared / name, folder / name)
    what, words = draw.choices([_arrays, _weights, _module, _published], [8, 6, 3, 2])[0](draw, prepared, folder)
    ended = command(*words, patience=20)
    faults = faults_of(ended)
    if ended.code == 130 and "interrupt" not in what:
        faults.append("hangs: interrupted after 20 s")
    if (folder / MARK).exists():
        faults.append("EXECUTED code of a file")
    return Outcome(f"{what}; atent {' '.join(words)}", tuple(faults))


def _arrays(draw: Draw, prepared: Path, folder: Path) -> tuple[str, list[str]]:
    """An .npz file for a training or an attack."""
    path = folder / "data.npz"
    if draw.random() < 0.6:
        way, content = damaged(draw, path.read_bytes() if draw.random() < 0.5 else _compressed(prepared))
        path.write_bytes(content)
    else:
        way = draw.choice(list(ARRAYS))
        ARRAYS[way](draw, path)
    shutil.copytree(prepared / "run", folder / "run")
    train = ["train", "recipe.toml", "--out", "new", "--threads", "1", "--device", "cpu"]
    attack = ["attack", "run/best.safetensors", "--model", NETWORK, "--data", "data.npz", *EVALUATE]
    return f"data.npz: {way}", draw.choice([train, attack])


def _compressed(prepared: Path) -> bytes:
    content = io.BytesIO()
    with np.load(prepared / "data.npz") as found:
        np.savez_compressed(content, **dict(found))
    return content.getvalue()


def _member(
    name: str, array: Any, method: int = zipfile.ZIP_DEFLATED, declared: str = ""
) -> Callable[[Draw, Path], None]:
    """A file whose member has another array, a method of compression, or a header that declares another shape."""

    def write(draw: Draw, path: Path) -> None:
        del draw
        with np.load(path) as found:
            arrays = dict(found)
        arrays[name] = array
        with zipfile.ZipFile(path, "w", method) as file:
            for key, one in arrays.items():
                content = io.BytesIO()
                np.save(content, one, allow_pickle=True)
                changed = content.getvalue()
                if declared and key == name:
                    old = repr(one.shape).encode()
                    changed = changed.replace(old, declared.encode()[: len(old) + 20].ljust(len(old)), 1)
                file.writestr(f"{key}.npy", changed)

    return write


def _bomb(size: int) -> Callable[[Draw, Path], None]:
    """A member of zeros that is a thousand times as large as the file."""

    def write(draw: Draw, path: Path) -> None:
        del draw
        head = io.BytesIO()
        shape = (size // 36, 6, 6)
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            with file.open("x.npy", "w", force_zip64=True) as member:
                member.write(head.getvalue())
                for _ in range(size >> 22):
                    member.write(bytes(1 << 22))
            file.writestr("y.npy", b"")

    return write


def _objects(draw: Draw, path: Path) -> None:
    np.savez(path, x=np.array([Hostile()] * 4, dtype=object), y=np.zeros(4, int))
    if draw.random() < 0.5:
        path.write_bytes(pickle.dumps(Hostile()))


def _encrypted(draw: Draw, path: Path) -> None:
    """Members that say that they are encrypted."""
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(mark, at + 1)) >= 0:
            content[at + place] |= 1
    path.write_bytes(bytes(content))
    del draw


ARRAYS: dict[str, Callable[[Draw, Path], object]] = {
    "lzma": _member("x", np.zeros((12, 6, 6), np.uint8), zipfile.ZIP_LZMA),
    "bzip2": _member("x", np.zeros((12, 6, 6), np.uint8), zipfile.ZIP_BZIP2),
    "empty x": _member("x", np.zeros((0, 6, 6), np.uint8)),
    "no pixels": _member("x", np.zeros((36, 0, 6), np.uint8)),
    "scalar x": _member("x", np.uint8(3)),
    "scalar y": _member("y", np.array(3)),
    "text": _member("x", np.array(["a"] * 36)),
    "dates": _member("x", np.zeros(36, "datetime64[s]")),
    "complex": _member("x", np.zeros((36, 6, 6), complex)),
    "half": _member("x", np.zeros((36, 6, 6), np.float16)),
    "nan": _member("x", np.full((36, 6, 6), np.nan)),
    "huge labels": _member("y", np.full(36, 2**62)),
    "unsigned labels": _member("y", np.full(36, 2**64 - 1, np.uint64)),
    "gap": _member("y", np.arange(36) * 10**6),
    "negative": _member("y", np.arange(36) - 1),
    "declared": _member("x", np.zeros((36, 6, 6), np.uint8), declared="(99999999999, 6, 6)"),
    "classes": _member("classes", np.array(["a\nb", "\x1b[31m", "c"])),
    "deep classes": _member("classes", np.zeros((2, 2))),
    "objects": _objects,
    "encrypted": _encrypted,
    "bomb": _bomb(64 << 20),
    "array alone": lambda _, path: path.write_bytes(_npy()),
}


def _npy() -> bytes:
    content = io.BytesIO()
    np.save(content, np.zeros((3, 3)))
    return content.getvalue()


def _weights(draw: Draw, prepared: Path, folder: Path) -> tuple[str, list[str]]:
    """A weights file of another program."""
    tensors = {"1.weight": torch.zeros(3, 36), "1.bias": torch.zeros(3)}
    way = draw.choice(list(TENSORS))
    found = TENSORS[way](dict(tensors))
    path = folder / draw.choice(["w.pt", "w.pth"])
    torch.save(found, path)
    if draw.random() < 0.2:
        path = folder / "w.safetensors"
        save_file(tensors, path)
        way = "safetensors"
    if way == "hostile" and draw.random() < 0.5:
        path.write_bytes(pickle.dumps(Hostile(), draw.choice([0, 2, 5])))
    if draw.random() < 0.4:
        harm, content = damaged(draw, path.read_bytes())
        path.write_bytes(content)
        way = f"{way}, {harm}"
    train = ["train", "recipe.toml", "--out", "new", "--threads", "1", "--device", "cpu", "--weights", path.name]
    attack = ["attack", path.name, "--model", NETWORK, "--data", "data.npz", *EVALUATE]
    del prepared
    return f"{path.name}: {way}", draw.choice([train, attack])


TENSORS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "good": lambda tensors: tensors,
    "wrapped": lambda tensors: {"state_dict": tensors},
    "wrapped often": lambda tensors: {"state_dict": {"model": {"state_dict": tensors}}},
    "sparse": lambda tensors: tensors | {"1.weight": tensors["1.weight"].to_sparse()},
    "csr": lambda tensors: tensors | {"1.weight": torch.eye(36)[:3].to_sparse_csr()},
    "bool": lambda tensors: tensors | {"1.weight": tensors["1.weight"].bool()},
    "complex": lambda tensors: tensors | {"1.weight": tensors["1.weight"].cfloat()},
    "double": lambda tensors: tensors | {"1.weight": tensors["1.weight"].double()},
    "integers": lambda tensors: tensors | {"1.weight": tensors["1.weight"].long()},
    "eighth": lambda tensors: tensors | {"1.weight": tensors["1.weight"].to(torch.float8_e4m3fn)},
    "nan": lambda tensors: tensors | {"1.weight": tensors["1.weight"] * float("nan")},
    "huge": lambda tensors: tensors | {"1.weight": tensors["1.weight"] + 1e38},
    "meta": lambda tensors: tensors | {"1.weight": torch.zeros(3, 36, device="meta")},
    "expanded": lambda tensors: tensors | {"1.weight": torch.zeros(1).expand(3, 36)},
    "quantized": lambda tensors: tensors | {"1.bias": torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)},
    "other shape": lambda tensors: tensors | {"1.weight": torch.zeros(3, 35)},
    "numbers": lambda tensors: tensors | {"epoch": 3},
    "keys": lambda tensors: {3: tensors["1.bias"]},
    "line breaks": lambda tensors: tensors | {"a\nb": tensors["1.bias"]},
    "list": lambda tensors: list(tensors.values()),
    "nothing": lambda tensors: {} if tensors else None,
    "hostile": lambda tensors: tensors | {"x": Hostile()},
}


def _module(draw: Draw, prepared: Path, folder: Path) -> tuple[str, list[str]]:
    """A user's module, named as a network or as a method."""
    way = draw.choice(list(MODULES))
    (folder / "own_module.py").write_text(MODULES[way])
    changes = {key: value for key, value in RECIPE.items() if key != "model"}
    if draw.random() < 0.6:
        changes["model"] = "own_module:network"
    else:
        part = draw.choice(["defense", "optimizer", "monitor"])
        changes |= {"model": NETWORK, part: {"name": "own_module:network"}}
    (folder / "recipe.toml").write_text(to_toml(changes))
    del prepared
    words = ["train", "recipe.toml", "--out", "new", "--threads", "1", "--device", "cpu"]
    evaluate = ["attack", "own_module:network", "--data", "data.npz", *EVALUATE]
    return f"module: {way}", draw.choice([words, evaluate])


def _published(draw: Draw, prepared: Path, folder: Path) -> tuple[str, list[str]]:
    """Files of a data set in the data folder."""
    home = folder / "data" / "mnist"
    home.mkdir(parents=True)
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        content = (prepared / f"{name}.gz").read_bytes()
        end, way = draw.choice(["", ".gz"]), draw.choice(["damaged", "bomb", "whole"])
        if way == "damaged":
            _, content = damaged(draw, content)
        if way == "bomb":
            content = _gzip_bomb()
        (home / f"{name}{end}").write_bytes(content)
    words = [
        "attack",
        "run/best.safetensors",
        "--model",
        "small-cnn",
        "--data",
        "mnist",
        "--data-dir",
        "data",
        *EVALUATE,
    ]
    shutil.copytree(prepared / "run", folder / "run")
    return "files of mnist", draw.choice([words, ["data", "list", "--data-dir", "data"]])


def _gzip_bomb(known: list[bytes] = []) -> bytes:  # noqa: B006 (made once)
    """A gigabyte of zeros in a megabyte."""
    if not known:
        content = io.BytesIO()
        with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1) as file:
            for _ in range(256):
                file.write(bytes(1 << 22))
        known.append(content.getvalue())
    return known[0]


OTHER_FILES = Kind("other files", play, prepare, batch=100, full=5000, short=120)
