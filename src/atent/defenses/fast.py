"""Adversarial training with a single step."""

from dataclasses import KW_ONLY
from typing import Literal

from atent.defenses.pgd_at import PgdAt
from atent.methods import Projection, Scale, Size, method


@method
class Fast(PgdAt):
    """Fast adversarial training: one large step from a random start.

        loss = CE(f(x'), y),   x' = P(x'_0 + reach eps d(grad CE)),   x'_0 uniform in the ball

    Wong et al. 2020, https://arxiv.org/abs/2001.03994. It can collapse within an epoch ("catastrophic overfitting"):
    then a single step fails on every image, but PGD breaks all of them. Training detects this on the held-out images,
    stops and keeps the best weights. Differs from the authors' code in: `mode` (theirs is "train").
    """

    _: KW_ONLY
    steps: Literal[1] = 1
    reach: Size = 1.25


@method
class NFgsm(Fast):
    """N-FGSM: one step of eps from a start in a ball of two radii, not projected.

        loss = CE(f(x'), y),   x' = x'_0 + eps d(grad CE),   x'_0 uniform in the ball of radius 2 eps

    x' may be three radii away from x; pixels stay in the box. Meant to avoid the collapse of `fast` at equal cost.
    de Jorge et al. 2022, https://arxiv.org/abs/2202.01181. Differs from the authors' code in: `mode` (theirs is
    "train").
    """

    _: KW_ONLY
    reach: Size = 1.0
    start_scale: Scale = 2.0
    project: Projection = "never"
