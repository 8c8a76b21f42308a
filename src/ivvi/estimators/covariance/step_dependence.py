"""How alike the rows of different episodes are at one step: of z, of residuals, of both.

A cost, a tax or the weather is the same for all stores in a week, and so are the shocks that
they share. From the sums S_t of w f over the rows of step t, for any linear function f of v
of mean zero and variance s^2,

    rho = (sum_t S_t^2 - s^2 sum w^2) / (s^2 sum_t (W_t^2 - sum_t w^2))

is the correlation of f between two rows of a step (method of moments). Products of
instrument and residual are then correlated rho_z rho_e, and Moulton's factor
1 + (m - 1) rho_z rho_e is by how much a variance that knows episodes alone is too small,
with m - 1 = sum_t (W_t^2 - sum_t w^2) / sum w^2 the other rows of a row's step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.estimators.least_squares import Exact
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Floats
from ivvi.moments import GroupSums, Moments

SHARED = 0.5
"""Correlation of z between two episodes at a step from which z counts as shared."""
ALL_THE_SAME = 0.95
"""The same where a step has few rows, of which chance makes pairs alike."""
FEW_ROWS = 5.0
MATTERS = 1.2
"""Moulton's factor from which the variances that know episodes alone are not used."""
FEWEST_STEPS = 6
"""Steps from which shocks that episodes share can be told from a trend, and clustered by."""
SURE = 4.0
"""Standard errors by which shared shocks must stand out before they count."""


@dataclass(frozen=True, slots=True)
class StepDependence:
    """Dependence between episodes at a step.

    Attributes
    ----------
    steps, rows
        Number of steps, and typical number m of rows at one.
    instruments
        Correlation of each excluded feature of psi, given the state's, between rows of a step.
    residuals
        That of the residual of each output.
    factor
        Moulton's largest, over the slopes of psi and the outputs whose residuals surely depend.
    """

    steps: int
    rows: float
    instruments: dict[str, float]
    residuals: dict[str, float]
    factor: float

    @property
    def shared(self) -> tuple[str, ...]:
        """The instruments that the episodes of a step share."""
        least = SHARED if self.rows >= FEW_ROWS else ALL_THE_SAME
        alike = {name for name, rho in self.instruments.items() if rho >= least}
        return tuple(name for name in self.instruments if name in alike and self.rows > 1.5)

    @property
    def matters(self) -> bool:
        """Whether errors that know episodes alone are too small.

        A trend over a handful of steps looks like shocks that episodes share, and says nothing.
        """
        return bool(self.shared) or (self.steps >= FEWEST_STEPS and self.factor >= MATTERS)


def step_dependence(moments: Moments, step: str | None) -> StepDependence | None:
    """Measure dependence at a step from the sums that a pass has kept, or return None."""
    sums = moments.group_sums(step)
    if sums is None or len(sums) < 2 or not others_of_step(sums) > 0:
        return None
    design, exact = moments.design, Exact().solve(moments)
    if not np.isfinite(exact.W).all():
        return None
    space = whiten(moments)
    inside = space.T[:, : space.exogenous]
    psi = [c for c in design.psi_columns if c not in design.shared]
    select = np.eye(design.width)[psi]
    centred = moments.scatter / moments.weight
    slopes = select @ centred @ inside
    of_z = select - slopes @ inside.T
    state = np.eye(design.width)[[c for c in design.shared if c != design.constant]]
    more = others_of_step(sums)
    rho_z, rho_x, rho_e = (
        correlations(moments, sums, maps) for maps in (of_z, state, exact.residual_map)
    )
    pairs = float(np.sum(sums.weight**2 - sums.square))
    sure = rho_e >= SURE * np.sqrt(2 / pairs)  # the variance of a mean of products of pairs
    largest = max([*rho_z, *rho_x], default=0.0) * max(rho_e[sure], default=0.0)
    names = [name for name, c in zip(design.psi_names, design.psi_columns, strict=True) if c in psi]
    return StepDependence(
        steps=len(sums),
        rows=1 + more,
        instruments=dict(zip(names, rho_z.tolist(), strict=True)),
        residuals=dict(zip(design.outputs, rho_e.tolist(), strict=True)),
        factor=1 + more * max(largest, 0.0),
    )


def others_of_step(sums: GroupSums) -> float:
    """Return m - 1, the typical number of other rows in a row's group."""
    return float(np.sum(sums.weight**2 - sums.square) / np.sum(sums.square))


def correlations(moments: Moments, sums: GroupSums, maps: Floats) -> Floats:
    """Return the correlation of each R v, R (d, p), between two rows of a group, (d,).

    Zero for what does not vary.
    """
    variance = np.einsum("ip,pq,iq->i", maps, moments.scatter / moments.weight, maps)
    whole = np.einsum("ip,p,ip->i", maps, np.diag(moments.scatter) / moments.weight, maps)
    varies = variance > 1e-10 * whole
    totals = np.sum((sums.about(moments.mean) @ maps.T) ** 2, axis=0)
    pairs = float(np.sum(sums.weight**2 - sums.square))
    excess = totals - variance * float(sums.square.sum())
    correlation: Floats = np.divide(
        excess, variance * pairs, out=np.zeros(len(maps)), where=varies & (pairs > 0)
    )
    return correlation
