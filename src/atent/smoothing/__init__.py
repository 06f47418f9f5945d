"""Randomized smoothing: noise, counts of noisy answers, what they prove, and the smoothed network."""

from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing

__all__ = ["Smoothed", "Smoothing"]
