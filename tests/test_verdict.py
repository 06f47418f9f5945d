"""The line that every evaluation ends with."""

import pytest

from atent.report.verdict import checks_in_words, verdict


def test_the_line_is_the_promised_one() -> None:
    line = verdict("strong", "linf:8/255", 1000, (0.473, 0.442, 0.504), 0.81, [])
    assert line == ("strong, linf:8/255, 1,000 test images: 47.3 % robust [44.2, 50.4], 81.0 % clean; checks: silent")


def test_a_sample_and_another_confidence_are_named() -> None:
    line = verdict("strong", "linf:0.3", 10_000, (0.9325, 0.918, 0.9381), 0.995, sampled=350, confidence=0.99)
    assert line == (
        "strong, linf:0.3, 10,000 test images, a sample of 350: 93.2 % robust [91.8, 93.8] at 99 %, 99.5 % clean; "
        "checks: not run"
    )


@pytest.mark.parametrize(
    ("warnings", "words"), [(None, "not run"), ([], "silent"), (["a"], "1 warning"), (["a", "b"], "2 warnings")]
)
def test_the_checks_in_words(warnings: list[str] | None, words: str) -> None:
    assert checks_in_words(warnings) == words
