"""How much an adversary may change an image: a norm ball around it, intersected with the pixel box."""

import math
import warnings
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from atent.errors import ThreatWarning, UserError, unknown
from atent.methods import Start
from atent.randomness import Source, normal_like, uniform_like

NORMS = ("linf", "l2")
TOLERANCE = 1e-6  # rounding of float32 pixels near 1 is 6e-8
DIGITS = 12  # of a radius as a person writes it; a fraction with all its digits, as older row files have it, has more
# In widths of the box. linf: the ball contains every image. l2: every image of 28 x 28 pixels can become the same grey;
# radii in use are below 5, while 36/255 or 128/255 without their divisor are above this limit.
VAST = {"linf": 1.0, "l2": 14.0}


@dataclass(frozen=True)
class Threat:
    """All images within `eps` of x in `norm` and inside `box`. `Threat.parse("linf:8/255")` reads one from text.

    Threats are equal if their radii are, however they were written: `linf:8/255` is `linf:0.03137254901960784`.
    """

    norm: Literal["linf", "l2"]
    eps: float
    box: tuple[float, float] = (0.0, 1.0)
    given: str = field(default="", init=False, repr=False, compare=False)  # the text of the radius, if it was parsed

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise UserError(f"threat norm {self.norm!r}; allowed: {', '.join(NORMS)}")
        if isinstance(self.eps, bool) or not (isinstance(self.eps, Real) and math.isfinite(self.eps) and self.eps >= 0):
            raise UserError(f"threat eps {self.eps!r}; allowed: a finite number >= 0")
        try:
            low, high = map(float, self.box)
            ordered = low < high
        except (TypeError, ValueError):
            ordered = False
        if not ordered:
            raise UserError(f"threat box {self.box!r}; allowed: (lowest, highest) pixel value, such as (0, 1)")
        if self.eps >= VAST[self.norm] * (high - low):
            warnings.warn(
                f"threat {self}: with pixels in [{low:g}, {high:g}] this radius can erase an image; "
                f"is {self}/255 meant?",
                ThreatWarning,
                stacklevel=3,
            )

    @classmethod
    def parse(cls, text: "str | Threat") -> "Threat":
        """Read `linf:0.3`, `linf:8/255`, `l2:0.5`; a Threat is returned unchanged."""
        if isinstance(text, Threat):
            return text
        if not isinstance(text, str):
            raise UserError(f"threat {text!r}; allowed: a Threat, or text such as 'linf:8/255' or 'l2:0.5'")
        norm, _, radius = text.partition(":")
        try:
            eps = float(Fraction(radius.strip())) if "/" in radius else float(radius)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UserError(f"threat {text!r}; allowed: NORM:EPS such as linf:0.3, linf:8/255 or l2:0.5") from None
        if norm not in NORMS:
            raise UserError(f"threat {text!r}: norm {norm!r}; allowed: {', '.join(NORMS)}")
        return cls("linf" if norm == "linf" else "l2", eps)._changed(given=radius.strip())

    def __str__(self) -> str:
        """The threat as it was given. It is exact: parsed again, it is an equal threat."""
        return f"{self.norm}:{_shortest(self.eps, self.given)}"

    @property
    def exact(self) -> str:
        """The same text for all equal threats, however they were given; it identifies their rows."""
        return f"{self.norm}:{self.eps!r}"

    def scaled(self, factor: float) -> "Threat":
        """The same threat with `factor` times the radius (eps warm-up)."""
        return self.with_radius(self.eps * factor)

    def unboxed(self) -> "Threat":
        """The same ball without the pixel box, for noisy images, whose pixels may lie outside [0, 1]."""
        return self._changed(box=(float("-inf"), float("inf")))

    def with_radius(self, eps: float) -> "Threat":
        """The same norm and box with another radius."""
        return self._changed(eps=eps, given="")

    def with_radii(self, radii: Tensor, x: Tensor) -> "OwnRadii":
        """The same norm and box with one radius per example of x; `radii` has shape (n,)."""
        return OwnRadii(self.norm, float(radii.max()), self.box, radii=over_pixels(radii, x))

    def _changed(self, **fields: Any) -> Self:
        """A copy with other fields, without a warning: the user was warned when the first threat was made."""
        changed = copy(self)
        vars(changed).update(fields)
        return changed

    @property
    def radius(self) -> float | Tensor:
        """The radius that projections use: one for all examples, or one per example."""
        return self.eps

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point of the pixel box."""
        return x.clamp(*self.box)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest point of the ball around x, then of the box.

        x lies in the box, so the second step moves every coordinate towards x and stays in the ball.
        """
        delta = x_adv - x
        if self.norm == "linf":
            delta.clamp_(-self.radius, self.radius)  # type: ignore[arg-type]  # either is allowed
        else:
            delta *= (self.radius / _norm(delta).clamp_min(1e-30)).clamp_max(1.0)
        return delta.add_(x).clamp_(*self.box)

    def sample(self, x: Tensor, generator: Source, start: Start = "uniform") -> Tensor:
        """A random point near x, inside the pixel box except for the start `unboxed`.

        uniform: uniform in the ball. unboxed: the same without the pixel box (Wong et al.'s start on MNIST).
        corner: linf a random vertex, l2 a random point of the sphere. gaussian: normal noise with about the radius as
        its size (linf: std eps/2; l2: std eps/sqrt(d), so the norm is near eps), projected to the ball.
        near: normal noise of std .001 (TRADES' start). center: x itself.
        """
        if start not in get_args(Start):
            raise unknown("start", start, get_args(Start))
        if start == "center" or self.eps == 0:
            return self.clamp(x)
        if start == "unboxed":
            return self.unboxed().sample(x, generator)
        if start == "near":
            return self.project(x + 1e-3 * normal_like(x, generator), x)
        if self.norm == "linf":
            if start == "gaussian":
                return self.project(x + (self.radius / 2) * normal_like(x, generator), x)
            cube = uniform_like(x, generator, -1, 1)
            return self.clamp(x + self.radius * (cube.sign() if start == "corner" else cube))
        normal = normal_like(x, generator)
        dimension = x[0].numel()
        if start == "gaussian":
            return self.project(x + (self.radius / math.sqrt(dimension)) * normal, x)
        sphere = self.radius * normal / _norm(normal)
        if start == "corner":
            return self.clamp(x + sphere)
        uniform = torch.empty(len(x), *[1] * (x.dim() - 1), device=x.device, dtype=x.dtype)
        inwards = uniform_like(uniform, generator) ** (1 / dimension)
        return self.clamp(x + inwards * sphere)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The steepest ascent direction of unit norm: the sign (linf), the normalized gradient (l2); 0 for 0."""
        if self.norm == "linf":
            return gradient.sign()
        # First divide by the largest entry: the squares of gradients below 1e-19 would be 0 in float32.
        largest = gradient.abs().amax(tuple(range(1, gradient.dim())), keepdim=True)
        scaled = gradient / torch.where(largest > 0, largest, torch.ones_like(largest))
        return scaled / _norm(scaled).clamp_min(1e-30)

    def size(self, delta: Tensor) -> Tensor:
        """The norm of each example's perturbation, shape (n,)."""
        order = float("inf") if self.norm == "linf" else 2
        size: Tensor = torch.linalg.vector_norm(delta.flatten(1), ord=order, dim=1)
        return size

    def contains(self, points: Tensor, x: Tensor) -> Tensor:
        """Which points lie inside the threat around x, shape (n,). The tolerance is half of that of `measure`."""
        boxed = ((points - self.clamp(points)).abs() <= TOLERANCE / 2).flatten(1).all(1)
        return boxed & (self.size(points - x) <= self.eps + TOLERANCE / 2 * max(1.0, self.eps))

    def measure(self, x_adv: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each x_adv: the size of its perturbation, whether it is in the ball, and whether it is in the box.

        Computed in double precision on the CPU. Ball and box allow for float32 rounding of the radius and of each
        pixel. NaN is in neither.
        """
        x_adv, x = x_adv.cpu().double(), x.cpu().double()  # some devices have no doubles
        size = self.size(x_adv - x)
        low, high = self.box
        boxed = ((x_adv >= low - TOLERANCE) & (x_adv <= high + TOLERANCE)).flatten(1).all(1)
        return size, size <= self.eps + self._slack(x[0].numel()), boxed

    def _slack(self, dimension: int) -> float:
        return TOLERANCE * max(1.0, self.eps) + 1e-8 * math.sqrt(dimension)


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnRadii(Threat):
    """A threat with one radius per example, shaped to broadcast over the pixels; `eps` is the largest radius."""

    radii: Tensor

    def __post_init__(self) -> None:
        """No checks: it is made from a threat that was checked."""

    @property
    def radius(self) -> Tensor:
        return self.radii

    def scaled(self, factor: float) -> "OwnRadii":
        return self._changed(eps=self.eps * factor, radii=self.radii * factor, given="")


def _shortest(eps: float, given: str) -> str:
    """The radius as given; one that was computed, or written with all its digits, as a decimal or as k/255."""
    if given and len(given) <= DIGITS:
        return given
    if float(f"{eps:.6g}") == eps:
        return f"{eps:.6g}"
    over_255 = f"{round(255 * eps)}/255"
    return over_255 if float(Fraction(over_255)) == eps else repr(eps)


def over_pixels(values: Tensor, x: Tensor) -> Tensor:
    """One value per example, shaped to broadcast over its pixels."""
    return values.view(-1, *[1] * (x.dim() - 1))


def _norm(delta: Tensor) -> Tensor:
    """The l2 norm of each example, shaped to broadcast over its pixels."""
    norm: Tensor = torch.linalg.vector_norm(delta, dim=tuple(range(1, delta.dim())), keepdim=True)
    return norm


def check_threat(method: object, threat: Threat) -> None:
    """Call the `check_threat` of a defense or an attack, if it has one: it raises if the method refuses the threat."""
    check = getattr(method, "check_threat", None)
    if check is not None:
        check(threat)
