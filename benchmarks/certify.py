"""The time of certification here and in the plain form: one image after the other, n draws each.

    python benchmarks/certify.py --target runs/mnist-smooth-gaussian [--data-dir DIR] [--examples N] [--rounds N]

The plain form is a direct implementation of Cohen et al.'s procedure: copies of one image, a tensor of noise added to
them, the network, a count of its predictions, batch after batch. All forms run alternately in one process with the same
batch size, images and network; the plain form uses the memory layout in which it is faster. Figures are ratios of the
best rounds. Certified accuracies must agree. Stopping the draws early has a limit: in any valid test an image certified
at r needs at least log(alpha) / log(Phi(r / sigma)) draws. The script prints the ratio that follows from it.
"""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from atent.data.images import Images
from atent.evaluation.target import every_image, open_target
from atent.machine import prepare
from atent.smoothing.bounds import ABSTAIN, Certificate, certified_radius, draws_for
from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing

Contender = Callable[[], list[Certificate]]
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def plain_counts(model: nn.Module, image: Tensor, draws: int, sigma: float, batch: int) -> Tensor:
    counts = torch.zeros(0, dtype=torch.long)
    while draws > 0:
        size = min(batch, draws)
        copies = image.repeat(size, 1, 1, 1)
        found = torch.bincount(model(copies + torch.randn_like(copies) * sigma).argmax(1), minlength=len(counts))
        counts = found + torch.nn.functional.pad(counts, (0, len(found) - len(counts)))
        draws -= size
    return counts


@torch.no_grad()
def plain(model: nn.Module, x: Tensor, how: Smoothing, batch: int) -> list[Certificate]:
    """Cohen et al.'s CERTIFY, one image after the other."""
    found = []
    for image in x:
        top = int(plain_counts(model, image, how.n0, how.sigma, batch).argmax())
        counts = plain_counts(model, image, how.n, how.sigma, batch).tolist()
        agreed = counts[top] if top < len(counts) else 0
        radius = certified_radius(agreed, how.n, how.sigma, how.alpha)
        prediction = ABSTAIN if radius is None else top
        found.append(Certificate(prediction, radius or 0.0, top, dict(enumerate(counts)), how.n0 + how.n))
    return found


def faster_layout(model: nn.Module, images: Images, sigma: float, batch: int) -> nn.Module:
    """A copy of the network in the memory layout in which the plain form is faster."""
    x, _ = images.batch(slice(1))
    times = {}
    for layout in LAYOUTS:
        trial = copy.deepcopy(model).to(memory_format=layout)  # type: ignore[call-overload]
        with torch.no_grad():
            plain_counts(trial, x[0], batch, sigma, batch)
            began = time.perf_counter()
            plain_counts(trial, x[0], 3 * batch, sigma, batch)
        times[time.perf_counter() - began] = trial
    best: nn.Module = times[min(times)]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="run folder or weights of a network to be smoothed")
    parser.add_argument("--model", help="its architecture, if the file does not contain it")
    parser.add_argument("--data", default="mnist", help="data set with the test images (default: mnist)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--radii", default="0,.5,1,1.5")
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()

    prepare(options.threads)
    target = open_target(options.target, model=options.model, data=options.data, data_dir=options.data_dir)
    target = every_image(target, options.every, options.examples)
    network, images = target.network.eval(), target.images
    radii = tuple(float(radius) for radius in options.radii.split(","))
    exact = Smoothing(options.sigma, n=options.n, alpha=options.alpha)
    early = Smoothing(options.sigma, n=options.n, alpha=options.alpha, radii=radii)
    x, y = images.batch(slice(None))
    smoothed = Smoothed(network, options.sigma)
    theirs = faster_layout(network, images, options.sigma, options.batch)
    contenders: dict[str, Contender] = {
        "plain": lambda: plain(theirs, x, exact, options.batch),
        "--exact-n": lambda: smoothed.certify(x, exact, batch=options.batch),
        "early": lambda: smoothed.certify(x, early, y=y, batch=options.batch),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, list[Certificate]] = {}
    for _ in range(options.rounds):
        for name, contender in contenders.items():
            began = time.perf_counter()
            found[name] = contender()
            times[name].append(time.perf_counter() - began)

    settings = f"batch {options.batch}, sigma {options.sigma:g}, n {options.n:,}, {options.threads} threads"
    print(f"{len(images)} images, {settings}, {options.rounds} rounds")
    report(found, times, y.tolist(), radii, exact)


def report(
    found: dict[str, list[Certificate]],
    times: dict[str, list[float]],
    labels: list[int],
    radii: tuple[float, ...],
    exact: Smoothing,
) -> None:
    """A line for each form, and the fewest draws that any valid test needs for the certified images."""
    count = len(labels)

    def held(name: str, radius: float) -> list[bool]:
        pairs = zip(found[name], labels, strict=True)
        return [found.prediction == label and found.radius >= radius for found, label in pairs]

    for name, seconds in times.items():
        best, draws = min(seconds), sum(c.draws for c in found[name]) / count
        shares = ", ".join(f"{100 * sum(held(name, r)) / count:.1f} at {r:g}" for r in radii)
        apart = [sum(a != b for a, b in zip(held(name, r), held("--exact-n", r), strict=True)) for r in radii]
        print(
            f"  {name:10} {best:8.2f} s (to {max(seconds):.2f})  {min(times['plain']) / best:5.2f} x as fast as plain",
            end="",
        )
        print(f"  {draws:7,.0f} draws per image; certified % {shares}; differs from --exact-n on {apart} images")
    fewest = (
        exact.n0
        + sum(
            max((draws_for(r, exact.sigma, exact.alpha) for r in radii if held("early", r)[k]), default=0.0)
            for k in range(count)
        )
        / count
    )
    print(f"  fewest draws of any valid test for these images: {fewest:,.0f}, {(exact.n0 + exact.n) / fewest:.2f} x")


if __name__ == "__main__":
    main()
