"""Certify a network in one call: a smoothed network, images in hand, a result that prints as one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from atent.data.given import InHand
from atent.evaluation.certify import certify_target, doubts_about, plan_certificates
from atent.evaluation.checks import check_range
from atent.evaluation.in_hand import check_counts, device_of, in_hand, read_files, rows_folder, save_files
from atent.methods import readable
from atent.report.html import html_table
from atent.smoothing.stopping import Smoothing
from atent.storage.certificates import Certified, CertifiedRow, read_certified
from atent.storage.row_format import Cost
from atent.storage.rows import Rate
from atent.threat import Threat

SHOWN = 4  # radii in the line


@dataclass(frozen=True, repr=False)
class Certification:
    """The accuracy of a smoothed network that no perturbation within a radius can lower. It prints as one line.

    Attributes:
        sigma: Standard deviation of the noise.
        n: The most draws of the noise per image.
        alpha: The probability that the certificate of an image is wrong, at most.
        images: The number of images.
        certified: For each l2 radius, the share of images with a certificate, and the ends of its 95 % interval.
        covers: The threats that a radius covers, such as `linf:2/255`, by that radius.
        abstained: The share of images without a prediction.
        rows: A row for each image: its label, prediction, certified radius and number of draws.
        warnings: What is doubtful about the settings or the network, a sentence each.
        passes: The images that were passed through the network, and the seconds.
        files: The files of rows and their curve, by their path in a run folder.
    """

    sigma: float
    n: int
    alpha: float
    images: int
    certified: Mapping[float, Rate]
    covers: Mapping[float, str]
    abstained: float
    rows: Sequence[CertifiedRow]
    warnings: tuple[str, ...]
    passes: Cost
    files: dict[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        """`certified, sigma 0.25, 100 test images: 85.0 % at l2:0 [76.7, 90.7], 60.0 % at l2:0.5 [50.2, 69.1]`."""
        chosen = list(self.certified.items())
        left = f", {len(chosen) - SHOWN} more radii" if len(chosen) > SHOWN else ""
        shares = (
            f"{100 * rate.value:.1f} % at l2:{radius:.4g} [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
            for radius, rate in chosen[:SHOWN]
        )
        return f"certified, sigma {self.sigma:g}, {self.images:,} test images: {', '.join(shares)}{left}"

    def _repr_html_(self) -> str:
        lines = [[f"{radius:.4g}", self.covers.get(radius, ""), str(rate)] for radius, rate in self.certified.items()]
        return html_table(repr(self), ["l2 radius", "covers", "certified % [95 %]"], lines, self.warnings)

    def save(self, folder: Path | str) -> Path:
        """Write the rows and their curve into a run folder, which `atent show` reads."""
        return save_files(self.files, folder)


@readable
def certify(
    model: nn.Module,
    x: InHand | str,
    y: Any = None,
    *,
    sigma: float,
    radii: float | Sequence[float] = (),
    threats: Threat | str | Sequence[Threat | str] = (),
    n: int = 100_000,
    n0: int = 100,
    alpha: float = 0.001,
    exact: bool = False,
    examples: int | None = None,
    seed: int = 0,
    batch: int = 1000,
    data_dir: Path | str | None = None,
    out: Path | str | None = None,
) -> Certification:
    """Smooth a network with normal noise, and prove for each image a radius within which its prediction is the same.

    The network is used in eval mode on its own device, and is unchanged afterwards.

        result = atent.certify(model, x, y, sigma=0.25, radii=[0.25, 0.5], n=10_000)
        print(result, result.certified[0.5].value)

    Args:
        model: A network that takes pixels in [0, 1] and returns logits; it must not be random.
        x: Images, as for `evaluate`: a tensor, a Dataset, a DataLoader, or the name or path of a data set.
        y: The labels of a tensor, whole numbers from 0.
        sigma: Standard deviation of the noise, in pixel values.
        radii: l2 radii of interest; 0 is added. Default: every .25 that can be proven.
        threats: Radii of interest as threats, such as `linf:2/255` (by the norm bound).
        n: Draws of the noise that bound the class's probability, at most.
        n0: Draws before them that select the class.
        alpha: The probability that an image's certificate is wrong, at most.
        exact: All `n` draws for every image, and its largest radius: exactly the procedure of Cohen et al.
        examples: The first so many images. Default: all.
        seed: Of the noise.
        batch: Noisy copies in a batch.
        data_dir: The folder of a data set that is given by name.
        out: A run folder for the rows. The same call then resumes after an interruption. Default: rows are in memory.
    """
    check_counts(n=n, n0=n0, batch=batch)
    plain, asked = Smoothing(sigma, n0, n, alpha), [radii] if isinstance(radii, int | float) else list(radii)
    balls = [Threat.parse(threat) for threat in ([threats] if isinstance(threats, str | Threat) else threats)]
    plain.check_radii(asked)
    with rows_folder(out) as folder, in_hand(model, x, y, examples=examples, data_dir=data_dir) as target:
        device = device_of(model)
        how, goals = plan_certificates(plain, asked, balls, target.images.shape.image, exact)
        doubts = (*doubts_about(sigma), *check_range(target.network, target.images, device))
        path = certify_target(target, how, goals, folder, seed=seed, batch=batch, device=device)
        return _certification(read_certified(path), doubts, read_files([path, path.with_suffix(".png")], folder))


def _certification(found: Certified, doubts: tuple[str, ...], files: dict[str, bytes]) -> Certification:
    header = found.header
    return Certification(
        sigma=header["sigma"],
        n=header["n"],
        alpha=header["alpha"],
        images=len(found.rows),
        certified={radius: found.accuracy(radius) for radius, _ in found.radii},
        covers={radius: threat for radius, threat in found.radii if threat},
        abstained=found.abstained.value,
        rows=found.rows,
        warnings=doubts,
        passes=found.cost,
        files=files,
    )
