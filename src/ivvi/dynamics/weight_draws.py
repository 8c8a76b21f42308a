"""Draws of the weights: W + dW, dW from a normal law with the covariance of the estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ivvi.errors import InputError

if TYPE_CHECKING:
    from ivvi.dynamics.model import Dynamics


def draw_deviations(model: Dynamics, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw dW from N(0, cov(W)), (count, d_y, d_phi)."""
    drawn = rng.normal(size=(count, model.W.size)) @ model.weight_root.T
    return np.asarray(drawn.reshape(count, *model.W.shape))


def weight_root(model: Dynamics) -> np.ndarray:
    """Return a square root of the covariance of W, its rows one after another.

    (d_y d_phi, d_y d_phi); rows are independent where only the covariance of each is kept.
    """
    W_cov = model.W_cov
    if W_cov is None:
        if not model.bread.size:
            raise InputError("this model was saved without the covariance of its weights")
        W_cov = np.kron(model.noise_cov, model.bread)
    if W_cov.ndim == 3:
        d_y, d_phi = model.W.shape
        whole = np.zeros((d_y, d_phi, d_y, d_phi))
        whole[range(d_y), :, range(d_y)] = W_cov
        W_cov = whole.reshape(d_y * d_phi, -1)
    values, vectors = np.linalg.eigh(W_cov)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))
