"""Train image classifiers that stay right when the input is attacked.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that `import atent` and
`atent --help` do not wait for torch.
"""

import ast
import importlib
from pathlib import Path

from atent import moved

__version__ = "0.1.0.dev3"

_NAMES = {
    name.name: line.module
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom) and line.module
    for name in line.names
}
__all__ = sorted(_NAMES)
moved.install()


def __getattr__(name: str) -> object:
    name = moved.current_name(name)
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'atent' has no attribute {name!r}")
