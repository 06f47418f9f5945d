"""Exact t-SNE for some hundred points (van der Maaten & Hinton 2008, JMLR 9:2579).

Our own 40 lines: scikit-learn would be a dependency for one figure, and its layout changes between versions.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def squared_distances(x: Array) -> Array:
    squares = (x**2).sum(1)
    return np.asarray(np.maximum(squares[:, None] + squares[None] - 2 * x @ x.T, 0.0))


def affinities(x: Array, perplexity: float) -> Array:
    """p_ij = (p_j|i + p_i|j) / 2n."""
    p = conditional(squared_distances(x), perplexity)
    return np.asarray((p + p.T) / (2 * len(x)))


def conditional(distance: Array, perplexity: float) -> Array:
    """p_j|i, proportional to exp(-beta_i |x_i - x_j|^2); beta_i is bisected until row i has this perplexity."""
    low, high = np.zeros(len(distance)), np.full(len(distance), np.inf)
    beta = 1 / np.maximum(distance.mean(1), 1e-12)
    for _ in range(60):
        exponent = -beta[:, None] * distance
        np.fill_diagonal(exponent, -np.inf)
        p = np.exp(exponent - exponent.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        wide = -(p * np.log(np.maximum(p, 1e-300))).sum(1) > np.log(perplexity)
        low, high = np.where(wide, beta, low), np.where(wide, high, beta)
        beta = np.where(np.isinf(high), 2 * beta, (low + np.where(np.isinf(high), low, high)) / 2)
    return np.asarray(p)


def gradient(p: Array, z: Array) -> tuple[float, Array]:
    """KL(p || q) and its gradient at the layout z, where q_ij is proportional to 1 / (1 + |z_i - z_j|^2)."""
    kernel = 1 / (1 + squared_distances(z))
    np.fill_diagonal(kernel, 0.0)
    q = np.maximum(kernel / kernel.sum(), 1e-300)
    loss = float((p * np.log(np.maximum(p, 1e-300) / q)).sum())
    force = (p - q) * kernel
    return loss, 4 * (force.sum(1)[:, None] * z - force @ z)


def embed(x: Array, perplexity: float = 30.0, iterations: int = 500) -> Array:
    """A layout of the points in two dimensions, from their two main directions, by descent with momentum and gains."""
    p = affinities(x, min(perplexity, (len(x) - 1) / 3))
    centred = x - x.mean(0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    z = (
        left[:, :2] * size[:2] * np.sign(left[np.abs(left[:, :2]).argmax(0), [0, 1]])
    )  # the sign of an axis is arbitrary
    z *= 1e-4 / z.std()
    move, gain = np.zeros_like(z), np.ones_like(z)
    rate = max(len(x) / 12 / 4, 50.0)
    for k in range(iterations):
        early = k < iterations // 4
        slope = gradient((12 if early else 1) * p, z)[1]
        gain = np.where(np.sign(slope) == np.sign(move), np.maximum(0.8 * gain, 0.01), gain + 0.2)
        move = (0.5 if early else 0.8) * move - rate * gain * slope
        z = z + move
    return np.asarray(z - z.mean(0))
