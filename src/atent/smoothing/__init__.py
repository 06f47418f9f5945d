"""Randomized smoothing: noise, counts of noisy answers, what they prove, and the smoothed network."""
