"""What was usually done in a state, and where a log has rows at all."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.features.blocks import Array
from ivvi.features.feature_map import FeatureMap, state_features


@dataclass(frozen=True, eq=False)
class Usual:
    """b(x) = E[a | x], linear in the features of phi that look at the state alone.

    Attributes
    ----------
    phi
        Feature map of the model.
    slopes
        Coefficients, (d_a, d_f).
    range
        Lowest and highest action of the log, (2, d_a).
    """

    phi: FeatureMap
    slopes: Array
    range: Array

    @classmethod
    def of(cls, model: Dynamics) -> Usual:
        """Regress the actions of the model's sample of the log on the states."""
        if len(model.acted) == 0:
            raise InputError(
                "caution needs rows of the log, and this model holds none: fit it to a log"
            )
        F = state_features(model.phi)(model.states, model.states)
        ends = np.array([model.acted.min(axis=0), model.acted.max(axis=0)])
        return cls(model.phi, slopes_of(F, model.acted), ends)

    def __call__(self, x: Array) -> Array:
        """Return actions (n, d_a) for states (n, d_x)."""
        return jnp.clip(state_features(self.phi)(x, x) @ self.slopes.T, *self.range)


@dataclass(frozen=True, eq=False)
class Support:
    """Where the log has rows: the ellipsoid of (x, a) that holds a share of them.

    Attributes
    ----------
    centre, scale
        Mean of v = [x, a], (p,), and T with (v - centre) T of unit covariance, (p, r).
    limit
        Largest squared length of (v - centre) T inside.
    """

    centre: np.ndarray
    scale: np.ndarray
    limit: np.ndarray

    @classmethod
    def of(cls, model: Dynamics, inside: float) -> Support:
        """Look at the model's sample of the log."""
        V = np.hstack([model.states, model.acted])
        values, vectors = np.linalg.eigh(np.cov(V.T, ddof=0).reshape(V.shape[1], -1))
        keep = values > 1e-12 * max(float(values[-1]), 1e-300)
        scale = vectors[:, keep] / np.sqrt(values[keep])
        far = np.sum(((V - V.mean(axis=0)) @ scale) ** 2, axis=1)
        return cls(V.mean(axis=0), scale, np.asarray(np.quantile(far, inside)))

    def outside(self, x: Array, a: Array) -> Array:
        """Tell which states (n, d_x) with actions (n, d_a) have no rows like them, (n,)."""
        v = jnp.concatenate([x, a], axis=-1) - self.centre
        return jnp.sum((v @ self.scale) ** 2, axis=-1) > self.limit


def slopes_of(F: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Regress y (m, d) on features F (m, p), whatever their units, (d, p)."""
    scale = np.linalg.norm(F, axis=0)
    scale[scale == 0] = 1.0
    return np.asarray(np.linalg.lstsq(F / scale, y, rcond=1e-10)[0].T / scale)
