import json
from pathlib import Path
from typing import Any

import torch

from atent.attacks import Pgd
from atent.evaluation.attack import attack_batch
from atent.models import Shape
from atent.report.tables import finished, results
from atent.smoothing.smoothed import Smoothed
from atent.storage.rows import Row
from toys import THREATS, small_network, stand_in

IMAGES = stand_in(Shape((1, 6, 6), 3), 20)
HEADER = {"label": "PGD-2", "threat": "linf:0.1", "data": "toy", "examples": 20, "model": "net", "weights": "abc"}


def test_attacks_on_different_smoothing_are_not_combined(tmp_path: Path) -> None:
    """A worst case combines only attacks on the same smoothed network. Old rows have `judged` in their header."""
    ways: list[dict[str, Any]] = [
        {},
        {"judged": "smoothed 0.5"},
        {"smooth": 0.5, "draws": 16},
        {"smooth": 0.5, "draws": 4},
        {"smooth": 0.25, "draws": 16},
    ]
    rows = [json.dumps(Row(index=k, label=1, clean=1, adversarial=1, size=0.0, robust=True)) for k in range(20)]
    (tmp_path / "attack").mkdir()
    for k, way in enumerate(ways):
        (tmp_path / "attack" / f"{k}.jsonl").write_text("\n".join([json.dumps(HEADER | way), *rows]) + "\n")
    names = ["", ", smoothed 0.25, 16 draws", ", smoothed 0.5", ", smoothed 0.5, 16 draws", ", smoothed 0.5, 4 draws"]
    assert [group.run.removeprefix(tmp_path.name) for group in finished(tmp_path)] == names
    assert all(line.attack == "PGD-2" for line in results(tmp_path))


def test_a_smoothed_network_costs_its_draws_and_does_not_depend_on_earlier_batches() -> None:
    smoothed, parts = Smoothed(small_network(), 1.0, draws=3), [slice(0, 10), slice(10, 20)]
    first, second = (attack_batch(smoothed, IMAGES, part, Pgd(steps=2), THREATS[1]) for part in parts)
    again = attack_batch(Smoothed(small_network(), 1.0, draws=3), IMAGES, parts[1], Pgd(steps=2), THREATS[1])
    assert again.rows == second.rows
    assert torch.equal(again.x_adv, second.x_adv)
    # One pass for the predictions, one over eight images to test for randomness, two steps.
    assert (first.cost.forward, first.cost.backward) == (3 * (10 + 8 + 20), 3 * 20)
