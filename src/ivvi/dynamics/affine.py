"""Whether the mean of the next state is affine, x' = c + P x + Q a, and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi.features.blocks import Constant, Power
from ivvi.features.feature_map import FeatureMap

if TYPE_CHECKING:
    from ivvi.dynamics.model import Dynamics


def is_affine(phi: FeatureMap) -> bool:
    """Whether the features are affine in states and actions."""
    return all(map(is_affine_block, phi.blocks))


def is_affine_block(block: Any) -> bool:
    """Whether a block is a constant, or states or actions as they are."""
    linear = isinstance(block, Power) and block.degree == 1 and block.of in ("state", "input")
    return linear or isinstance(block, Constant)


def affine_part(model: Dynamics) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return c (d_x,), P (d_x, d_x), Q (d_x, d_a) of x' = c + P x + Q a, None if it is not."""
    if model.bends:
        return None
    d_x, d_a, d_next = len(model.state), len(model.action), model.update.predicted
    parts = {"c": np.zeros((d_next, 1)), "P": np.zeros((d_next, d_x)), "Q": np.zeros((d_next, d_a))}
    column = 0
    for block in model.phi.blocks:
        name = "c" if isinstance(block, Constant) else "P" if block.of == "state" else "Q"
        width = parts[name].shape[1]
        parts[name] = parts[name] + model.W[:d_next, column : column + width]
        column += width
    affine = parts["c"][:, 0], parts["P"], parts["Q"]
    return affine if model.update.is_plain else model.update.affine(*affine)
