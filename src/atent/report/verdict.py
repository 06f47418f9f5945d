"""The result of an evaluation in one line."""

from collections.abc import Sequence

Interval = tuple[float, float, float]  # a share of the images, then the ends of its interval


def verdict(
    name: str,
    threat: str,
    images: int,
    robust: Interval,
    clean: float,
    warnings: Sequence[str] | None = None,
    *,
    sampled: int | None = None,
    confidence: float = 0.95,
) -> str:
    """`strong, linf:8/255, 1,000 test images: 47.3 % robust [44.2, 50.4], 81.0 % clean; checks: silent`.

    Args:
        name: The suite or the attack.
        threat: As the user wrote it.
        images: How many were attacked. With `sampled`: all images of the test set.
        robust: The share that withstands every attack and the ends of its interval, each in [0, 1].
        clean: The share that is classified correctly without an attack.
        warnings: The findings of the checks; None if the checks were not run.
        sampled: How many of the images the expensive attacks attacked, if that was a sample.
        confidence: Of the interval; the line has it only if it is not the usual one.
    """
    value, low, high = (f"{100 * share:.1f}" for share in robust)
    part = "" if sampled is None else f", a sample of {sampled:,}"
    level = "" if confidence == 0.95 else f" at {100 * confidence:.6g} %"
    accuracies = f"{value} % robust [{low}, {high}]{level}, {100 * clean:.1f} % clean"
    return f"{name}, {threat}, {images:,} test images{part}: {accuracies}; checks: {checks_in_words(warnings)}"


def checks_in_words(warnings: Sequence[str] | None) -> str:
    """`silent`, `1 warning`, `2 warnings` or, for None, `not run`."""
    if warnings is None:
        return "not run"
    return f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}" if warnings else "silent"
