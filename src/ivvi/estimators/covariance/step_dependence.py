"""Correlation between episodes at the same step: of z, of residuals, and of their products.

A cost, a tax or the weather is the same for all stores in a week, and so are the shocks that
they share. From the sums S_t of w f over the rows of step t, for any linear function f of v
of mean zero and variance s^2,

    rho = (sum_t S_t^2 - s^2 sum w^2) / (s^2 sum_t (W_t^2 - sum_t w^2))

is the correlation of f between two rows of a step (method of moments). Products of instrument and
residual then have the correlation rho_z rho_e. A variance clustered by episode alone is too small
by Moulton's factor 1 + (m - 1) rho_z rho_e, with m - 1 = sum_t (W_t^2 - sum_t w^2) / sum w^2 the
other rows of a row's step.

Where both the instrument and the shocks last from one step to the next, r_z and r_e being the
correlations of their means between steps that follow each other, so do their products, and
what episodes share weighs (1 + r_z r_e) / (1 - r_z r_e) times as much as if steps were
independent: the long-run variance of a series of the first order (Andrews and Monahan, 1992).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from ivvi._io.arrays import Floats
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.estimators.whitening import whiten
from ivvi.logs import Log
from ivvi.logs.schema import columns_once
from ivvi.moments import GroupSums, Moments
from ivvi.moments.group_sums import group_codes

SHARED = 0.5
"""From this correlation between two episodes at the same step, z counts as shared."""
ALL_THE_SAME = 0.95
"""The same where a step has few rows, so that pairs may agree by chance."""
FEW_ROWS = 5.0
MATTERS = 1.2
"""From this Moulton factor, variances clustered by episode alone are not used."""
FEWEST_STEPS = 6
"""Fewest steps with which shared shocks can be distinguished from a trend and clustered by."""
SURE = 4.0
"""Standard errors by which shared shocks must stand out before they count."""
LASTING = 1.0
"""From this many standard errors, z and shocks count as lasting from step to step. By chance both
do in one of 40 logs, and their product is small then; a higher bar misses logs of few steps."""
MOST_LASTING = 0.9
BY_CHANCE = 0.005
"""Level at which products are tested, all together, for dependence at a step."""
MOST_PRODUCTS = 64
"""Products of an instrument and a residual that are looked at one by one."""


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
    lasting
        Correlation of their products between steps that follow each other: r_z r_e, the largest;
        zero unless both are sure.
    """

    steps: int
    rows: float
    instruments: dict[str, float]
    residuals: dict[str, float]
    factor: float
    lasting: float = 0.0

    @property
    def inflation(self) -> float:
        """By how much the variance that episodes share is larger than with independent steps."""
        return (1 + self.lasting) / (1 - self.lasting)

    @property
    def shared(self) -> tuple[str, ...]:
        """The instruments that the episodes of a step share."""
        least = SHARED if self.rows >= FEW_ROWS else ALL_THE_SAME
        several = self.rows > 1.5
        return tuple(name for name, rho in self.instruments.items() if several and rho >= least)

    def is_the_same(self, instruments: tuple[str, ...]) -> bool:
        """Whether all episodes of a step have one value of each of these instruments."""
        return all(self.instruments.get(name, 0.0) >= ALL_THE_SAME for name in instruments)

    def words(self, step: str) -> str:
        """Say what episodes share at a step."""
        names = ", ".join(columns_once(self.shared, self.shared))
        if not names:
            return f"instrument times residual: similar across episodes at a {step}"
        return f"{names}: similar in all episodes at a {step}"

    def note(self, step: str) -> str:
        """Say why rows are clustered by step too."""
        text = f"{self.words(step)} ({self.steps:,} of them), so clustered by {step} too"
        if not self.lasting:
            return text
        return (
            f"{text}; it persists from one {step} to the next (correlation {self.lasting:.2f}), "
            f"so its part of the variance is multiplied by {self.inflation:.1f}"
        )

    @property
    def matters(self) -> bool:
        """Whether errors clustered by episode alone are too small.

        A trend over a handful of steps looks like shocks that episodes share, and says nothing.
        """
        return bool(self.shared) or (self.steps >= FEWEST_STEPS and self.factor >= MATTERS)


def step_dependence(
    moments: Moments, step: str | None, log: Log | None = None
) -> StepDependence | None:
    """Measure dependence at a step from the sums that a pass has kept, or return None.

    The sums show that some episodes share something, such as those of a region. Whether they share
    both z and shocks is seen from the first rows of the `log`, if it is given.
    """
    sums = moments.group_sums(step)
    if sums is None or len(sums) < 2 or not others_of_step(sums) > 0:
        return None
    design, exact = moments.design, Exact().solve(moments)
    if not np.isfinite(exact.W).all():
        return None
    space = whiten(moments)
    inside = space.to_white[:, : space.exogenous]
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
    chance = SURE * np.sqrt(2 / pairs)  # the variance of a mean of products of pairs
    sure = rho_e >= chance
    largest = max([*rho_z, *rho_x], default=0.0) * max(rho_e[sure], default=0.0)
    factor = 1 + more * max(largest, 0.0)
    both_shared = (rho_z >= chance).any() and sure.any() and len(sums) >= FEWEST_STEPS
    if log is not None and both_shared and factor < MATTERS:
        factor = max(factor, _products(moments, log, str(step), of_z, exact.residual_map[sure]))
    names = [name for name, c in zip(design.psi_names, design.psi_columns, strict=True) if c in psi]
    return StepDependence(
        steps=len(sums),
        rows=1 + more,
        instruments=dict(zip(names, rho_z.tolist(), strict=True)),
        residuals=dict(zip(design.outputs, rho_e.tolist(), strict=True)),
        factor=factor,
        lasting=_lasting(moments, sums, of_z) * _lasting(moments, sums, exact.residual_map),
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


def _products(moments: Moments, log: Log, step: str, of_z: Floats, of_e: Floats) -> float:
    """Return how much products of instruments and residuals depend within steps, in the first rows.

    (sum_t G_t^2) / (sum_i g_i^2) of the largest that is surely above one, for products g = z e
    and their sums G_t by step; one where none is. Without dependence sum_t G_t^2 - sum_i g_i^2
    has the variance 2 sum_t ((sum_i g_i^2)^2 - sum_i g_i^4).
    """
    head = log.beginning()
    codes = group_codes(head, log.roles, step)
    if codes is None:
        return 1.0
    place = np.unique(codes, return_inverse=True)[1]
    V = np.ones((len(head), moments.design.width))
    V[:, moments.design.varying] = moments.design.rows(head)
    z, e = (V - moments.mean) @ of_z.T, V @ of_e.T
    pairs = list(itertools.islice(itertools.product(z.T, e.T), MOST_PRODUCTS))
    sure, largest = float(ndtri(1 - BY_CHANCE / max(len(pairs), 1))), 1.0
    for one, other in pairs:
        g = one * other if head.weight is None else head.weight * one * other
        sums, squares, fourths = (np.bincount(place, part) for part in (g, g**2, g**4))
        excess = np.sum(sums**2) - np.sum(squares)
        if excess > sure * np.sqrt(2 * np.sum(squares**2 - fourths)):
            largest = max(largest, float(1 + excess / np.sum(squares)))
    return largest


def _lasting(moments: Moments, sums: GroupSums, maps: Floats) -> float:
    """Return the largest correlation of means of R v between steps that follow each other.

    Corrected for the bias of short series (Kendall 1954); zero where none is sure.
    """
    steps = len(sums)
    if steps < 2 * FEWEST_STEPS or not len(maps):
        return 0.0
    means = sums.about(moments.mean) @ maps.T / sums.weight[:, None]
    if sums.places is not None:
        means = means[np.argsort(sums.places)]
    means -= means.mean(axis=0)
    squares = np.sum(means**2, axis=0)
    pairs = np.sum(means[1:] * means[:-1], axis=0)
    r = float(np.max(np.divide(pairs, squares, out=np.zeros(len(maps)), where=squares > 0)))
    if r + 1 / steps < LASTING / np.sqrt(steps):
        return 0.0
    return min(r + (1 + 3 * r) / steps, MOST_LASTING)
