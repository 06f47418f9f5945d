"""The distances of the misclassified images that CW-l2 and DeepFool find, here and in Foolbox, with equal steps.

    python benchmarks/distances.py --plain RUN [--data-dir DIR] [--examples N] [--threads N]

Both attack the same test images, those that the network classifies correctly. In the median, an image for which nothing
was found has infinite distance. Foolbox's CW-l2 is run with its default step size and constant, meant for 9 x 10,000
steps, and with those that work best with so few steps.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from atent.attacks import CwL2, MinimalAttack, make_attack
from atent.attacks.protocols import title_of
from atent.data.images import evaluation_batches
from atent.evaluation.target import Target, open_target
from atent.inputs import check_points
from atent.machine import prepare
from atent.network import borrowed, predict
from atent.threat import Threat

L2, LINF = Threat("l2", 0.0), Threat("linf", 0.0)
CW: dict[str, object] = {
    "name": "foolbox:L2CarliniWagnerAttack",
    "binary_search_steps": CwL2().searches,
    "steps": CwL2().steps,
}
# Each of our attacks, its threat, and the attacks it is compared with.
PAIRS: list[tuple[dict[str, object], Threat, list[dict[str, object]]]] = [
    ({"name": "deepfool"}, L2, [{"name": "foolbox:L2DeepFoolAttack"}]),
    ({"name": "deepfool"}, LINF, [{"name": "foolbox:LinfDeepFoolAttack"}]),
    ({"name": "cw-l2"}, L2, [CW, CW | {"stepsize": 0.1, "initial_const": 1.0}]),
]


def distances(target: Target, settings: dict[str, object], threat: Threat, batch: int) -> Tensor:
    """For each correctly classified image, the distance of the point that the attack finds; infinite if none."""
    attack, found = make_attack(settings), []
    assert isinstance(attack, MinimalAttack)
    for part in evaluation_batches(len(target.images), batch):
        x, y = target.images.batch(part)
        with borrowed(target.network):
            right = predict(target.network, x) == y
            x, y = x[right], y[right]
            points = attack.nearest(target.network, x, y, threat, torch.Generator().manual_seed(0))
            size, _ = check_points(points, x, threat, title_of(attack), minimal=True)
            found.append(torch.where(predict(target.network, points) != y, size, float("inf")))
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--plain", type=Path, required=True, metavar="RUN", help="run folder of a network without defense"
    )
    parser.add_argument("--data", help="data set with the test images (default: the run's)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    prepare(options.threads)
    target = open_target(options.plain, data=options.data, data_dir=options.data_dir, examples=options.examples)
    print(f"{options.plain}, the first {options.examples} test images of {target.data}\n")
    print("norm    median  found %  ours / it   attack")
    for ours, threat, peers in PAIRS:
        mine = 0.0
        for settings in [ours, *peers]:
            found = distances(target, settings, threat, options.batch)
            middle, share = float(found.median()), float(found.isfinite().float().mean())
            mine = middle if settings is ours else mine
            title = title_of(make_attack(settings))
            print(
                f"{threat.norm:6}{middle:8.4f}{100 * share:9.1f}{mine / middle:12.3f}   {title}",
                flush=True,
            )


if __name__ == "__main__":
    main()
