"""Certify in one call, on a linear network whose certified radius is known exactly."""

from typing import Any

import pytest
import torch

import atent
from atent.errors import UserError
from test_in_hand import SIGMA, WEIGHTS, X, Y, batch, height, network


def test_no_certificate_exceeds_the_distance_to_the_boundary() -> None:
    """Noise makes a linear network no worse: its smoothed radius is the distance itself."""
    x, y = batch(40)
    radii = [0.05, 0.1, 0.2]
    result = atent.certify(network(), x, y, sigma=SIGMA, radii=radii, n=1000)
    distance = torch.where(y == 1, height(x), -height(x)) / WEIGHTS.norm()
    assert list(result.certified) == [0.0, *radii]
    for row, far in zip(result.rows, distance.tolist(), strict=True):
        assert row["prediction"] != row["label"] or row["radius"] <= far
    for radius, rate in result.certified.items():
        # Proven with 1,000 draws: the images clearly beyond the radius.
        assert float((distance > radius + 0.1).float().mean()) <= rate.value
        assert rate.value <= float((distance >= radius).float().mean())
    first = result.certified[0.05]
    low, high = 100 * first.low, 100 * first.high
    assert f"{100 * first.value:.1f} % at l2:0.05 [{low:.1f}, {high:.1f}]" in repr(result)
    assert repr(result).startswith("certified, sigma 0.25, 40 test images: ")
    assert result._repr_html_().count("<tr>") == 5
    assert result.warnings == ()


@pytest.mark.parametrize("threats", ["linf:2/255", ["linf:2/255"]])
def test_threats_are_covered_and_doubts_told(threats: str | list[str]) -> None:
    result = atent.certify(network(), *batch(3), sigma=1.5, threats=threats, n=200)
    ((radius, threat),) = result.covers.items()
    assert radius == pytest.approx(2 / 255 * 6**0.5)
    assert threat == str(atent.Threat.parse("linf:2/255"))
    assert "sigma 1.5 hides most of the image" in result.warnings[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": -1.0}, "sigma -1; allowed: a finite number > 0"),
        ({"sigma": 0.1, "radii": [5.0]}, "radius 5 cannot be proven"),
        ({"sigma": 0.1, "n": 2}, "can only abstain"),
        ({"sigma": 0.1, "n": 1e3}, "n 1000.0; allowed: a whole number >= 1"),
        ({"sigma": 0.1, "batch": 0}, "batch 0; allowed: a whole number >= 1"),
    ],
)
def test_impossible_certificates_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        atent.certify(network(), X, Y, **options)
