"""The behaviour policy estimated from the log: its mean action, its support, and the full policy.

    z = C f(x) + zeta      a = G psi(x, z) + eta

with f the features of psi that look at the state alone. In the log eta is correlated with the
hidden confounder that also moves the next state, which makes the actions look better than they are.
Here zeta and eta are drawn at random from rows of the log: the same behaviour, without the
confounder. `Usual` is its mean action in a state, `Support` the region where the log has rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.features.blocks import Array, Power
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, state_features
from ivvi.moments import Moments, compress
from ivvi.planning.allowed_actions import exclusive_actions


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
                "caution needs rows of the log, and this model holds none; fit it from a log"
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
        """Return which states (n, d_x) with actions (n, d_a) have no rows like them, (n,)."""
        v = jnp.concatenate([x, a], axis=-1) - self.centre
        return jnp.sum((v @ self.scale) ** 2, axis=-1) > self.limit


def slopes_of(F: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Regress y (m, d) on features F (m, p), whatever their units, (d, p)."""
    scale = np.linalg.norm(F, axis=0)
    scale[scale == 0] = 1.0
    return np.asarray(np.linalg.lstsq(F / scale, y, rcond=1e-10)[0].T / scale)


MOST_LEVELS = 12
"""Distinct values up to which a column of actions is taken to be discrete."""
RAW = Power(1, "input")


@dataclass(frozen=True)
class BehaviourFeatures:
    """The features of the behaviour policy.

    Attributes
    ----------
    f
        Features of the state.
    psi
        Features of (x, z); None where the instruments are not at hand, and f stands for it.
    of_state
        Which columns of psi are f.
    by_episode
        Whether z is drawn once for an episode.
    exclusive
        Columns of the action that are indicators of one category: at most one of them is 1.
    """

    f: FeatureMap
    psi: FeatureMap | None
    of_state: tuple[int, ...] = ()
    by_episode: bool = False
    exclusive: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, model: Dynamics, design: Design | None) -> BehaviourFeatures:
        """Take psi from the design of the moments; without one, the states' features of phi."""
        z = model.instruments
        source = model.phi if design is None else design.psi
        f = state_features(source)
        exclusive = exclusive_actions(model)
        if design is None or z.ndim < 2 or z.shape[1] == 0:
            return cls(f, None, exclusive=exclusive)
        x, at = model.states[:1], 0
        columns: list[int] = []
        for block in design.psi.blocks:
            width = block(x, z[:1]).shape[1]
            columns += range(at, at + width) if block.of == "state" else ()
            at += width
        return cls(f, design.psi, tuple(columns), model.global_instrument, exclusive)


@dataclass(frozen=True, eq=False, repr=False)
class BehaviourPolicy(Compact):
    """Behaviour fitted to a log.

    Attributes
    ----------
    features
        Features.
    action_weights, instrument_weights
        Coefficients of a, (d_a, d_psi), and of z, (d_z, d_f).
    eta, zeta
        Residuals of a, (m, d_a), and of z, (m, d_z), in the same rows of the log.
    low, high
        Range of the actions in the log, (d_a,).
    levels
        Values of discrete columns of actions in order, (d_a, MOST_LEVELS), the last one
        repeated; NaN for continuous columns.
    """

    features: BehaviourFeatures
    action_weights: np.ndarray
    instrument_weights: np.ndarray
    eta: np.ndarray
    zeta: np.ndarray
    low: np.ndarray
    high: np.ndarray
    levels: np.ndarray

    @classmethod
    def of(cls, model: Dynamics, moments: Moments | None) -> BehaviourPolicy | None:
        """Fit the behaviour policy; None where no rows of the log are at hand."""
        if len(model.acted) == 0:
            return None
        features = BehaviourFeatures.of(model, None if moments is None else moments.design)
        x, a, z = model.states, model.acted, model.instruments
        F = features.f(x, x)
        Psi, z = (F, np.zeros((len(x), 0))) if features.psi is None else (features.psi(x, z), z)
        fitted = None if moments is None else coefficients(moments, features, model)
        action_weights, instrument_weights = fitted or (slopes_of(Psi, a), slopes_of(F, z))
        bounds = a.min(axis=0), a.max(axis=0)
        return cls(
            features,
            action_weights,
            instrument_weights,
            a - Psi @ action_weights.T,
            z - F @ instrument_weights.T,
            *bounds,
            _levels(a),
        )


def coefficients(
    moments: Moments, features: BehaviourFeatures, model: Dynamics
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return both weights from moments; None where a, z or f are not among their columns."""
    places = {argument: at for block, argument, at in moments.design.pieces if block == RAW}
    if features.psi is None or not features.of_state or len(places) < 2:
        return None
    R = np.vstack([moments.mean, compress(moments)])  # R^T R = E[v v^T]
    psi = np.array(moments.design.psi_columns)
    a = R[:, places["action"] :][:, : len(model.action)]
    z = R[:, places["instrument"] :][:, : model.instruments.shape[1]]
    return slopes_of(R[:, psi], a), slopes_of(R[:, psi[list(features.of_state)]], z)


def _levels(a: np.ndarray) -> np.ndarray:
    levels = np.full((a.shape[1], MOST_LEVELS), np.nan)
    for j, column in enumerate(a.T):
        values = np.unique(column)
        if len(values) <= MOST_LEVELS:
            levels[j] = np.append(values, [values[-1]] * (MOST_LEVELS - len(values)))
    return levels
