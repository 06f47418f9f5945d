"""Randomized smoothing: noise, counts of predictions under noise, the bounds they prove, and the smoothed network."""

from atent.smoothing.smoothed import Smoothed
from atent.smoothing.stopping import Smoothing

__all__ = ["Smoothed", "Smoothing"]
