"""Is an instrument the mean of the action over its group, the row itself included?

Judges are compared by the mean of their decisions. If a row's own decision is part of the mean,
what moves the decision moves the instrument: with groups of m rows this is two-stage least squares
with an indicator for each group, whose bias is about 1 / F of that of least squares, F being the
statistic of the groups. It is exactly visible: the mean of the action over all rows with one value
of the instrument is that value. Means that leave the row out have no such rows.
"""

from __future__ import annotations

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.logs import Batch, Roles
from ivvi.logs.evenly_spaced_rows import spread

FEW_ROWS = 1024
"""Rows of a first look."""
NEAR = 0.5
"""How far from one the slope of the action on its mean may be in these, and their means apart."""
EQUAL = 1e-6
"""Rounding of a mean, in standard deviations of the action."""
FEWEST_VALUES, SHARE = 10, 0.5
"""Values of the instrument that must be means, and their share; of continuous actions none."""
HARMLESS = 100.0
"""Statistic of the groups from which on the bias is below a hundredth of least squares'."""


def own_means(head: Batch, roles: Roles) -> str:
    """Return a warning if an instrument is a mean of actions with the row's own, else ''."""
    coded = {name for c in roles.categories for name in c.names}
    weights = head.weight
    if roles.groups or not head.z.shape[1] or (weights is not None and np.ptp(weights) > 0):
        return ""
    for k, j in _pairs(spread(head, FEW_ROWS)):
        name = roles.instrument[k]
        if name not in coded and _is_own_mean(head.z[:, k], head.a[:, j]):
            group = roles.set_by[0] if roles.set_by else "COLUMN"
            return (
                f"{name} is the mean of {roles.action[j]} over all rows with the same {name}, the "
                "row's own included: whatever moves the action moves its instrument too, so the "
                "effect is biased towards least squares; use the mean of the other rows, with the "
                f"column of the groups: --instrument loo:{group} (instrument='loo:{group}')"
            )
    return ""


def _pairs(rows: Batch) -> list[tuple[int, int]]:
    """Return pairs of an instrument and an action with a slope near one, by a quick look."""
    instruments, actions = rows.z - rows.z.mean(axis=0), rows.a - rows.a.mean(axis=0)
    size, spread_of_a = np.sum(instruments**2, axis=0), actions.std(axis=0)
    slope = instruments.T @ actions / np.where(size > 0, size, np.inf)[:, None]
    apart = np.abs(rows.z.mean(axis=0)[:, None] - rows.a.mean(axis=0))
    near = (np.abs(slope - 1) < NEAR) & (apart < NEAR * spread_of_a)
    again = [len(np.unique(z)) < len(z) if near[k].any() else False for k, z in enumerate(rows.z.T)]
    return [(k, j) for k, j in np.argwhere(near).tolist() if again[k]]


def _is_own_mean(z: Floats, a: Floats) -> bool:
    """Return whether values of z are means of a over the rows with them, and this matters."""
    values, codes, counts = np.unique(z, return_inverse=True, return_counts=True)
    means = np.bincount(codes, weights=a) / counts
    several = counts > 1
    equal = several & (np.abs(means - values) <= EQUAL * a.std())
    continuous = len(np.unique(a[: 2 * FEW_ROWS])) > FEW_ROWS
    needed = FEWEST_VALUES if continuous else max(FEWEST_VALUES, SHARE * several.sum())
    if equal.sum() < needed:
        return False
    chosen = equal[codes]
    within = float(np.sum((a - means[codes])[chosen] ** 2))
    between = float(np.sum((means[codes] - a[chosen].mean())[chosen] ** 2))
    freedom, groups = int(chosen.sum() - equal.sum()), int(equal.sum()) - 1
    return within > 0 and between * freedom < HARMLESS * within * groups
