"""Weight, mean and scatter of rows, and how those of two sets add up.

Chan, Golub and LeVeque's update: the centred form keeps its digits when a column's mean is large
relative to its spread. Rows that stand together, such as the steps of an episode, are
summed as runs.
"""

from __future__ import annotations

import numpy as np

from ivvi._io.arrays import Floats, Ints

LONG_RUN = 24
"""Runs of at least this many rows get a matrix product each, which beats sums of all products."""
NEAR_ZERO = 8
"""Up to this ratio of second moment to variance, the mean may be subtracted after the products."""
RUNS_PER_LENGTH = 8
"""From this many runs per length, on average, runs of one length are multiplied together."""


def run_starts(codes: Ints) -> Ints:
    """Return where each run of equal codes begins, (runs,)."""
    starts: Ints = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
    return starts


def run_products(resid: Floats, others: Floats, starts: Ints) -> Floats:
    """Sum e_i z_i^T over runs of rows that begin at `starts`, (runs, d_e, d_z).

    The rows are columns here: resid (d_e, n), others (d_z, n).
    """
    n, sums = resid.shape[1], np.empty((len(starts), len(resid), len(others)))
    lengths: Ints = np.diff(starts, append=n)
    inner = lengths[1:-1]
    if len(inner) and (inner == inner[0]).all():  # the rows may begin and end inside of a run
        within = slice(starts[1], starts[-1])
        _equal_products(resid[:, within], others[:, within], sums[1:-1])
        _single_products(resid, others, starts[[0, -1]], lengths[[0, -1]], sums[:: len(sums) - 1])
    elif len(starts) >= RUNS_PER_LENGTH * len(kinds := np.unique(lengths)):
        for length in kinds.tolist():
            which = np.flatnonzero(lengths == length)
            rows = (starts[which][:, None] + np.arange(length)).ravel()
            together = np.empty((len(which), len(resid), len(others)))
            _equal_products(resid[:, rows], others[:, rows], together)
            sums[which] = together
    elif n < LONG_RUN * len(starts):
        for i, e in enumerate(resid):
            sums[:, i] = np.add.reduceat(e * others, starts, axis=1).T
    else:
        _single_products(resid, others, starts, lengths, sums)
    return sums


def _equal_products(resid: Floats, others: Floats, out: Floats) -> None:
    """Write the sums of runs of one length to `out` (runs, d_e, d_z)."""
    left, right = (part.reshape(len(part), len(out), -1).swapaxes(0, 1) for part in (resid, others))
    np.matmul(left, right.swapaxes(1, 2), out=out)


def _single_products(
    resid: Floats, others: Floats, starts: Ints, lengths: Ints, out: Floats
) -> None:
    """Write the sums of runs, one after the other, to `out` (runs, d_e, d_z)."""
    for sums, start, stop in zip(out, starts.tolist(), (starts + lengths).tolist(), strict=True):
        np.matmul(resid[:, start:stop], others[:, start:stop].T, out=sums)


def scatter_of(V: Floats, weight: Floats | None) -> tuple[float, Floats, Floats]:
    """Return total weight, mean (p,) and scatter (p, p) of the rows of V."""
    if weight is None:
        mean = V.mean(axis=0)
        raw = V.T @ V
        scatter = raw - len(V) * np.outer(mean, mean)
        if not (np.diag(raw) <= NEAR_ZERO * np.diag(scatter)).all():
            centred = V - mean
            scatter = centred.T @ centred
        return float(len(V)), mean, scatter
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


def merged_groups(weights: Floats, means: Floats, scatters: Floats) -> tuple[float, Floats, Floats]:
    """Return weight, mean (p,) and scatter (p, p) of groups of rows together."""
    total = float(weights.sum())
    if total == 0:
        return 0.0, np.zeros(means.shape[1]), np.zeros((means.shape[1],) * 2)
    mean = weights @ means / total
    between = means - mean
    return total, mean, scatters.sum(axis=0) + (between.T * weights) @ between


def scatter_by_group(
    V: Floats, weight: Floats | None, group: Ints
) -> tuple[Ints, Floats, Floats, Floats]:
    """Return numbers (E,), weights (E,), means (E, p) and scatters (E, p, p) of groups of rows.

    Groups of no weight are left out.
    """
    if weight is not None and not weight.all():
        used = weight > 0
        V, weight, group = V[used], weight[used], group[used]
    if np.any(group[1:] < group[:-1]):
        order = np.argsort(group, kind="stable")
        V, group = V[order], group[order]
        weight = None if weight is None else weight[order]
    starts, rows = run_starts(group), V.T
    lengths = np.diff(np.append(starts, len(group)))
    weights = lengths.astype(np.float64)
    weighted = rows
    if weight is not None:
        weights, weighted = np.add.reduceat(weight, starts), rows * weight
    means = np.add.reduceat(weighted, starts, axis=1) / weights
    centred = np.repeat(means, lengths, axis=1)
    np.subtract(rows, centred, out=centred)
    left = centred if weight is None else centred * weight
    return group[starts], weights, means.T, run_products(left, centred, starts)
