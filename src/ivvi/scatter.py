"""Weight, mean and scatter of rows, and how those of two sets of rows add up.

Chan, Golub and LeVeque's update: the centred form keeps its digits when a column's mean is
large against its spread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def scatter_of(V: Floats, weight: Floats | None) -> tuple[float, Floats, Floats]:
    """Return total weight, mean (p,) and scatter (p, p) of the rows of V."""
    if weight is None:
        mean = V.mean(axis=0)
        centred = V - mean
        return float(len(V)), mean, centred.T @ centred
    total = float(weight.sum())
    if total == 0:
        return 0.0, np.zeros(V.shape[1]), np.zeros((V.shape[1],) * 2)
    mean = weight @ V / total
    centred = (V - mean) * np.sqrt(weight)[:, None]
    return total, mean, centred.T @ centred


def merge(
    one: tuple[float, Floats, Floats], other: tuple[float, Floats, Floats]
) -> tuple[float, Floats, Floats]:
    """Add two sets of (weight, mean, scatter)."""
    weight = one[0] + other[0]
    if weight == 0:
        return one
    shift = other[1] - one[1]
    mean = one[1] + shift * (other[0] / weight)
    scatter = one[2] + other[2] + np.outer(shift, shift) * (one[0] * other[0] / weight)
    return weight, mean, scatter


def scatter_by_group(
    V: Floats, weight: Floats | None, group: Ints
) -> tuple[Ints, Floats, Floats, Floats]:
    """Return numbers (E,), weights (E,), means (E, p) and scatters (E, p, p) of groups of rows."""
    order = np.argsort(group, kind="stable")
    numbers, starts = np.unique(group[order], return_index=True)
    stops = np.append(starts[1:], len(order))
    parts = [
        scatter_of(V[rows], None if weight is None else weight[rows])
        for rows in (order[i:j] for i, j in zip(starts, stops, strict=True))
    ]
    weights, means, scatters = (np.array(part) for part in zip(*parts, strict=True))
    return numbers, weights, means, scatters
