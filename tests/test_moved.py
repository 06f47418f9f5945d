import importlib
import sys

import pytest

from atent.moved import MOVED
from atent.training.options import TrainingOptions


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("atent.entropy_sgd", "EntropySGD"),
        ("atent.images", "Images"),
        ("atent.passes", "predict"),
        ("atent.runs", "Run"),
        ("atent.runs", "load_tensors"),
        ("atent.step", "train_step"),
        ("atent.target", "open_network"),
        ("atent.weights", "load_weights"),
    ],
)
def test_an_old_path_works_and_names_the_new_one(path: str, name: str) -> None:
    sys.modules.pop(path, None)
    with pytest.warns(DeprecationWarning, match=f"{path} has moved to atent"):
        old = importlib.import_module(path)
    homes = [importlib.import_module(f"atent.{home}") for home in MOVED[path.removeprefix("atent.")]]
    assert any(getattr(old, name) is getattr(home, name, None) for home in homes)
    with pytest.raises(AttributeError, match="nothing"):
        old.nothing  # noqa: B018


@pytest.mark.filterwarnings("ignore:atent.train has moved")
@pytest.mark.parametrize("path", ["atent", "atent.train"])
def test_an_old_name_works_and_names_the_new_one(path: str) -> None:
    module = importlib.import_module(path)
    with pytest.warns(DeprecationWarning, match="How is now called TrainingOptions"):
        old = module.How
    assert old is TrainingOptions


@pytest.mark.parametrize("module", MOVED)
def test_every_new_home_exists(module: str) -> None:
    for home in MOVED[module]:
        importlib.import_module(f"atent.{home}")
