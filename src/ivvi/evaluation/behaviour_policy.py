"""The behaviour policy as the log shows it, without what nobody recorded.

    z = C f(x) + zeta      a = G psi(x, z) + eta

with f the features of psi that look at the state alone. In the log eta leans on the hidden
confounder that moves the next state too, which flatters the actions. Here zeta and eta are
those of rows of the log drawn at random: the same behaviours, with nobody's help.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.dynamics.model import Dynamics
from ivvi.features.blocks import Power
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, state_features
from ivvi.moments import Moments, compress
from ivvi.planning.usual_action import slopes_of

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
    """

    f: FeatureMap
    psi: FeatureMap | None
    of_state: tuple[int, ...] = ()
    by_episode: bool = False

    @classmethod
    def of(cls, model: Dynamics, design: Design | None) -> BehaviourFeatures:
        """Take psi from the design of the moments; without one, the states' features of phi."""
        z = model.instruments
        source = model.phi if design is None else design.psi
        f = state_features(source)
        if design is None or z.ndim < 2 or z.shape[1] == 0:
            return cls(f, None)
        x, at = model.states[:1], 0
        columns: list[int] = []
        for block in design.psi.blocks:
            width = block(x, z[:1]).shape[1]
            columns += range(at, at + width) if block.of == "state" else ()
            at += width
        return cls(f, design.psi, tuple(columns), model.global_instrument)


@dataclass(frozen=True, eq=False)
class BehaviourPolicy:
    """Behaviour fitted to a log.

    Attributes
    ----------
    features
        Features.
    G, C
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
    G: np.ndarray
    C: np.ndarray
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
        G, C = fitted or (slopes_of(Psi, a), slopes_of(F, z))
        bounds = a.min(axis=0), a.max(axis=0)
        return cls(features, G, C, a - Psi @ G.T, z - F @ C.T, *bounds, _levels(a))


def coefficients(
    moments: Moments, features: BehaviourFeatures, model: Dynamics
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return G and C from moments; None where a, z or f are not among their columns."""
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
