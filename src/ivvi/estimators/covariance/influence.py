"""How much each row moves the instrumented coefficients, and how long this influence lasts.

Row i moves the coefficient w by s_i / n, s_i = e_i L psi~_i: its residual times the part that the
instruments leave it. Along an episode s is as persistent as both factors: the share r of it remains
in the next row, the product of the shares that remain of e and of L psi~. Each share is the
correlation over two rows divided by the correlation over one row, a ratio that noise in single rows
does not reduce. Andrews' (1991) bandwidth of Bartlett's kernel is

    1.1447 (4 r^2 / ((1 - r)^2 (1 + r)^2) T)^(1/3),

and an average over so many lags leaves T / (2/3 bandwidth) independent terms: the degrees of
freedom of the intervals (compare Kiefer and Vogelsang, 2005).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.whitening import whiten
from ivvi.logs import Batch
from ivvi.moments import Moments

FEWEST_ROWS = 30
"""Rows that follow each other by which a bandwidth is chosen."""
NOISE = 2.0
"""Standard errors below which a correlation with the row before is none."""
LARGEST_SHARE = 1 / 3
"""Share of an episode that a bandwidth may have."""
FEW_TERMS, LASTING = 20.0, 0.5
"""Degrees of freedom below which, and r above which, dependence outlasts what rows can tell."""


@dataclass(frozen=True, slots=True, repr=False)
class Influence(Compact):
    """What each row adds to each effect, (n, effects), and the effects' outputs and features.

    It is the residual `e` of an output, (n, d_y), times what the instruments leave, `v` (n,
    effects), and times the weight of the row.
    """

    s: Floats
    e: Floats
    v: Floats
    names: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, estimate: Estimate, moments: Moments, rows: Batch) -> Influence | None:
        """Return the influence of rows on instrumented coefficients; None if there are none."""
        design = moments.design
        free = [j for j in range(estimate.W.shape[1]) if j not in set(design.shared)]
        noisy = [i for i, name in enumerate(design.outputs) if name not in estimate.exact]
        names = tuple((i, j) for i in noisy for j in free)
        if not names or not estimate.influence.size or not np.isfinite(estimate.W).all():
            return None
        V = np.ones((len(rows), design.width))
        V[:, design.varying] = design.rows(rows)
        space = whiten(moments, estimate.instruments)
        L = np.broadcast_to(estimate.influence, (len(estimate.W), *estimate.influence.shape[-2:]))
        inner, e = (V - space.shift) @ space.to_white, V @ estimate.residual_map.T
        mass = np.ones(len(rows)) if rows.weight is None else rows.weight
        v = np.column_stack([inner @ L[i, j] for i, j in names])
        return cls(mass[:, None] * e[:, [i for i, _ in names]] * v, e, v, names)


def with_bandwidth(
    errors: Resolved, estimate: Estimate, moments: Moments, head: Batch, steps: float
) -> Resolved:
    """Return HAC errors of `auto` with the bandwidth that suits the first rows.

    `steps` are those of an episode on average.
    """
    asked = errors.requested
    if errors.kind != "hac" or asked.kind != "auto" or asked.bandwidth is not None:
        return errors
    influence = Influence.of(estimate, moments, head)
    if influence is None or head.episode is None:
        return errors
    if np.count_nonzero(head.episode[1:] == head.episode[:-1]) < FEWEST_ROWS:
        return errors
    r = max(
        _left(influence.e[:, i], head.episode) * _left(v, head.episode)
        for (i, _), v in zip(influence.names, influence.v.T, strict=True)
    )
    wide = 1.1447 * (4 * r**2 / ((1 - r) ** 2 * (1 + r) ** 2) * steps) ** (1 / 3)
    bandwidth = max(errors.bandwidth, int(min(wide, LARGEST_SHARE * steps)))
    freedom = max(1.5 * moments.n / (bandwidth + 1), 1.0)
    errors = replace(errors, bandwidth=bandwidth, freedom=freedom)
    if freedom >= FEW_TERMS or r < LASTING:
        return errors
    warning = (
        f"the influence of rows on an effect is serially correlated ({r:.0%} of it remains in the "
        f"next row): {moments.n:,} rows are worth about {freedom:.0f} independent ones, and the "
        "standard errors may still be too small; use a longer log or more episodes, or differences "
        "(difference=True, --difference)"
    )
    return replace(errors, warning=errors.warning or warning)


def _left(x: Floats, episode: Ints) -> float:
    """Return the share of a series that remains in the next row, 0 to 0.99; 0 if that is noise."""
    x = x - x.mean()
    sums = []
    for lag in (1, 2):
        same = episode[lag:] == episode[:-lag]
        sums.append(float(x[lag:][same] @ x[:-lag][same]) / max(int(same.sum()), 1))
    if sums[0] <= NOISE / np.sqrt(len(x)) * float(x @ x) / len(x):
        return 0.0
    return min(max(sums[1] / sums[0], 0.0), 0.99)
