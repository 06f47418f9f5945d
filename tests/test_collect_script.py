"""`scripts/collect.py`: what is kept of a run, and what is not."""

import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with weights, rows and saved images, trained with data of one machine."""
    folder = tmp_path / "runs" / "one"
    (folder / "attack").mkdir(parents=True)
    for name in ("recipe.json", "train.jsonl", "best.safetensors", "attack/PGD.jsonl", "attack/PGD.npz", ".lock"):
        (folder / name).write_text("{}")
    command = "atent train demo --data-dir '/home/me/my data' --out runs/one"
    (folder / "environment.json").write_text(json.dumps({"starts": [{"command": command, "cores": 2}]}))
    return folder


def test_rows_are_kept_without_weights_images_and_places(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    from collect import collect

    kept = collect(run, tmp_path / "results")
    assert kept == tmp_path / "results" / "one"
    names = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert names == ["attack/PGD.jsonl", "environment.json", "recipe.json", "train.jsonl"]
    (start,) = json.loads((kept / "environment.json").read_text())["starts"]
    assert start == {"command": "atent train demo --data-dir DATA --out runs/one", "cores": 2}
    sys.modules.pop("collect")
