"""How a model extrapolates: linear features hold everywhere, others only where the log has states.

The data do not show what a spline or a cube does beyond that range. There the model uses the mean
of the nearest state in range (`reach`), and a learned reward decreases (`fade`), so that a plan
gains nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.dynamics.next_state_distribution import Categories
from ivvi.features.blocks import Constant, Power
from ivvi.features.custom_block import Custom
from ivvi.features.feature_map import FeatureMap

FAR = 1e12
"""Simulated states stay within this, so that exploding ones are very bad, not undefined."""
INSIDE = (0.005, 0.995)
"""Quantiles of the log's states between which nonlinear features are trusted."""


def is_affine(phi: FeatureMap) -> bool:
    """Return whether the features are affine in states and actions."""
    return all(map(_is_affine_block, phi.blocks))


def is_limited(phi: FeatureMap) -> bool:
    """Return whether some feature is used only where the log has states.

    That holds for features chosen for their flexibility: powers, interactions, splines, waves.
    Linear terms, and functions that a user wrote, are used everywhere.
    """
    return not all(_is_affine_block(block) or isinstance(block, Custom) for block in phi.blocks)


def state_range(samples: Sequence[np.ndarray], categories: Categories) -> np.ndarray:
    """Return the lowest and the highest state at which features are evaluated, (2, d_x).

    For each column the outermost of the quantiles of all samples (m, d_x). Indicators of categories
    have no limits.
    """
    ends = np.array([np.quantile(rows, INSIDE, axis=0) for rows in samples])
    limits = np.array([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])
    free = [column for category in categories for column in category]
    limits[:, free] = np.array([[-np.inf], [np.inf]])
    return limits


def reward_fade(states: np.ndarray, rewards: np.ndarray, reach: Array) -> np.ndarray:
    """Return the loss of a learned reward per unit that a state lies beyond `reach`, (d_x,).

    One standard deviation of the log's rewards (m,) per standard deviation of its states (m, d_x).
    """
    spread = states.std(axis=0)
    lost = rewards.std() / np.where(spread > 0, spread, 1.0)
    return np.asarray(np.where(np.isfinite(reach[0]), lost, 0.0))


def beyond(x: Array, reach: Array, fade: Array) -> Array:
    """Return the loss of a learned reward where states x (..., d_x) lie beyond `reach`, (...)."""
    inside = x.__array_namespace__().clip(x, reach[..., 0, :], reach[..., 1, :])
    return (abs(x - inside) * fade).sum(axis=-1)


def _is_affine_block(block: Any) -> bool:
    """Return whether a block is a constant, or states or actions without a transformation."""
    linear = isinstance(block, Power) and block.degree == 1 and block.of in ("state", "input")
    return linear or isinstance(block, Constant)
