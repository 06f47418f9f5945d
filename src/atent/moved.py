"""Import paths and names of 0.1 that have changed. They work for one release, with a DeprecationWarning."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, tuple[str, ...]] = {
    "entropy_sgd": ("optim.entropy_sgd",),
    "evaluate": ("evaluation.attack",),
    "images": ("data.images",),
    "passes": ("network",),
    "rows": ("storage.rows", "storage.row_format"),
    "runs": ("storage.files", "storage.run"),
    "step": ("training.step",),
    "target": ("evaluation.target",),
    "train": ("training.fit", "training.options"),
    "weights": ("models.weights",),
    "checks": ("evaluation.checks",),
}
RENAMED = {"How": "TrainingOptions"}


def current_name(name: str) -> str:
    """The present name of what was called so."""
    if name in RENAMED:
        words = f"{name} is now called {RENAMED[name]}; the old name goes with version 0.2"
        warnings.warn(words, DeprecationWarning, stacklevel=3)
    return RENAMED.get(name, name)


class _Old(ModuleType):
    """An old module whose name a public function has today (`atent.evaluate`, `atent.train`): calls go to it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        package = importlib.import_module("atent")
        return package.__getattr__(self.__name__.removeprefix("atent."))(*arguments, **options)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 (signature set by the protocol)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        return ModuleSpec(name, self) if package == "atent" and module in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the old module with a `__getattr__` that looks names up in the new modules."""
        homes = [f"atent.{home}" for home in MOVED[module.__name__.removeprefix("atent.")]]
        words = f"{module.__name__} has moved to {' and '.join(homes)}; version 0.2 removes the old path"
        warnings.warn(words, DeprecationWarning, stacklevel=2)

        def find(name: str) -> Any:
            name = current_name(name)
            for home in homes:
                if hasattr(found := importlib.import_module(home), name):
                    return getattr(found, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__getattr__ = find  # type: ignore[method-assign]
        module.__class__ = _Old


def install() -> None:
    """Let the old paths be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
