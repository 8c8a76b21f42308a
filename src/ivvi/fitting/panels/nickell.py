"""Nickell's bias: fixed effects and lagged states in panels of few steps.

Taking the mean of an episode of T steps out of x' and of x mixes the noise of every step into
both: x, less its mean, is correlated with the noise e, less its own, by about S b / T, with S the
variance of x within episodes, however many episodes there are (Nickell, 1981). W moves by

    G b / T,   G = L S      with L the influence of the moments E[x e] on W.

With effects of their own for the two halves of each episode, of l steps, it is G_half b / l. Both G
are known, so the difference of the two estimates gives b, and with it the bias of W:

    W_half - W ~ (G_half / l - G / T) b        bias = K (W_half - W)        W - bias

to first order: the half-panel jackknife (Dhaene and Jochmans, 2015), here with one slope for
both halves. Without actions K is l / (T - l), one for an even T; the slopes of actions are biased
only because absorbing makes their instruments correlated with x, which G knows. An odd T has
halves of (T + 1) / 2 steps, the step in the middle being in both: of two halves that differ in
length the longer one would count for more. If next states are not derived but the table has columns
with lags (`own_lags`), an episode here is a value of the absorbed column within which they are
lags. With u_i and v_i the influence of an episode on W and on W_half, its influence on W - bias is
u_i - K (v_i - u_i), whose squares add up to its variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.errors import DataError, IdentificationError, InputError
from ivvi.estimators import Estimate, Method
from ivvi.estimators.covariance.clusters import cluster_products
from ivvi.estimators.estimate import with_weights
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design, build_design
from ivvi.fitting.panels.absorbing import AbsorbedTable
from ivvi.fitting.panels.lag_detection import OwnLags, own_lags
from ivvi.logs import Log
from ivvi.logs.columns.patterns import Columns
from ivvi.moments import Moments, compute_moments

Solved = tuple[Moments, Estimate]
"""The moments of rows with effects removed, and their weights."""
WORTH_WARNING = 0.25
"""A bias of at least this many standard errors gets a warning."""
FEWEST_STEPS = 5
"""Steps per episode below which the jackknife leaves too much of the bias."""


@dataclass(frozen=True, slots=True, repr=False)
class Nickell(Compact):
    """The bias of slopes of lagged states after absorbing the episodes' effects.

    Attributes
    ----------
    bias
        Estimate of it, (d_y, d_phi); empty where it is not known.
    steps
        Mean number of steps of a unit.
    corrected
        Whether it was removed from the weights, by the half-panel jackknife.
    unit
        The absorbed column that is halved: the episode, or that by which `lags` are lags.
    lags
        States that are outputs of the row before; empty where next states are derived.
    unordered
        Whether rows of a unit are not in the order of time, so that they cannot be halved.
    """

    bias: Floats
    steps: float
    corrected: bool = False
    unit: str = "episode"
    lags: tuple[str, ...] = ()
    unordered: bool = False

    def worst(self, estimate: Estimate) -> tuple[int, int, float] | None:
        """Return output and feature with the largest bias in standard errors, and how many."""
        if not self.bias.size:
            return None
        slopes = [j for j in range(self.bias.shape[1]) if j != estimate.design.constant]
        se = estimate.se[:, slopes]
        ratio = np.abs(self.bias[:, slopes]) / np.where(se > 0, se, np.inf)
        i, j = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        return int(i), slopes[j], float(ratio[i, j])

    def line(self, estimate: Estimate) -> str:
        """Return the bias in words."""
        worst = self.worst(estimate)
        if self.unordered:
            return f"not known: the rows of {self.unit} are not in chronological order"
        if worst is None:
            return f"unknown: {self.steps:.3g} steps per episode are too few to halve"
        i, j, ratio = worst
        names = estimate.design.phi_names[j], estimate.design.outputs[i]
        bias = f"{self.bias[i, j]:+.3g} ({ratio:.2g} standard errors) for {names[0]} on {names[1]}"
        return f"at most about {bias}" + (", removed (half-panel jackknife)" * self.corrected)

    def warning(self, estimate: Estimate) -> str:
        """Return what to know before believing the estimate; empty if nothing."""
        worst, short = self.worst(estimate), self.steps < FEWEST_STEPS
        if worst is not None and (worst[2] < WORTH_WARNING or (self.corrected and not short)):
            return ""
        start = f"Nickell bias of lagged states with {self.steps:.3g} steps per episode"
        if self.lags:
            named = f"{' and '.join(self.lags)} (the output of the row before)"
            start = f"Nickell bias of {named} with {self.steps:.3g} rows for each {self.unit}"
        if self.unordered:
            return (
                f"{start}: {self.line(estimate)}; name the columns of unit and time (episode=, "
                "step=, --episode, --step) to know it"
            )
        if short:
            return (
                f"{start}: {self.line(estimate)}; the half-panel jackknife leaves part of it with "
                "so few steps: use differences (difference=True, --difference)"
            )
        return (
            f"{start}: {self.line(estimate)}; remove it with half_panel (--half-panel), or use "
            "differences (difference=True, --difference)"
        )


def nickell_bias(
    log: Log, design: Design, columns: Columns, table: AbsorbedTable, method: Method, fit: Solved
) -> Nickell | None:
    """Estimate the bias of a fit of the rows without effects; None where there is none."""
    if (lagged := _lagged(log, table)) is None:
        return None
    unit, lags = lagged
    nickell = Nickell(
        np.empty((0, 0)), 0.0, unit=unit, lags=lags.states, unordered=not lags.in_order
    )
    lengths = table.effects.counts[table.names.index(unit)]
    nickell = replace(nickell, steps=float(lengths.sum() / np.count_nonzero(lengths)))
    if nickell.unordered:
        return nickell
    log, table = _in_order(log, design, columns, table)
    lengths = table.effects.counts[table.names.index(unit)]
    try:
        rows = AbsorbedTable(log, design, columns, lengths=lengths, halved=unit)
        halved = _solved(rows, method)
    except (DataError, IdentificationError, InputError):
        return nickell
    gap = halved[1].W - fit[1].W
    K = _extrapolation(fit, halved, lengths, lags.states)
    return replace(nickell, bias=np.einsum("ojk,ok->oj", K, gap))


def _in_order(
    log: Log, design: Design, columns: Columns, table: AbsorbedTable
) -> tuple[Log, AbsorbedTable]:
    """Return the log with the rows of an episode in order, and these without their effects."""
    read = log.clustered(tuple(dict.fromkeys((*log.roles.cluster, *table.names))))
    ordered = read.in_order()
    return (log, table) if ordered is read else (ordered, AbsorbedTable(ordered, design, columns))


def _lagged(log: Log, table: AbsorbedTable) -> tuple[str, OwnLags] | None:
    """Return the absorbed column by whose values states are lags of outputs, and which; or None.

    No states are named where next states are derived: they all are.
    """
    episode = log.roles.episode
    if log.roles.derived:
        return (episode, OwnLags(())) if episode in table.names else None
    if not log.roles.state:
        return None
    head, codes = table.first_rows()
    for unit, units in sorted(codes.items(), key=lambda one: one[0] != episode):
        if (lags := own_lags(head, units, log.roles)) is not None:
            return unit, lags
    return None


def _solved(
    table: AbsorbedTable, method: Method, *, episodes: bool = False, by: str | None = None
) -> Solved:
    """Solve for the weights of rows without effects, whose units are episodes or `by` a column."""
    rows = Log(table, table.roles)
    design = build_design(rows, *table.features)
    moments, _ = compute_moments(rows, design, episodes=episodes, by=by)
    return moments, method.solve(moments, rows)


def _extrapolation(
    whole: Solved, halved: Solved, lengths: Ints, lags: tuple[str, ...] = ()
) -> Floats:
    """Return K of each output, (d_y, d_phi, d_phi), for units of these lengths (G,).

    The features of `lags` are correlated with the noise, or all states where none are named.

    An episode of T steps has T - 1 left of its mean, by which it counts: 1 / T is the mean over
    steps so counted, and 1 / l that over the halves.
    """
    T = lengths[lengths > 1].astype(np.float64)
    halves = np.ceil(T / 2)
    rate, half = (np.sum(1 - 1 / each) / np.sum(each - 1) for each in (T, halves[halves > 1]))
    d_y, d_phi = whole[1].W.shape
    if not (whole[1].influence.size and halved[1].influence.size):
        return np.tile(rate / (half - rate) * np.eye(d_phi), (d_y, 1, 1))
    design = whole[0].design
    lagged = [c for c in design.shared if c != design.constant]
    lagged = [c for c in lagged if design.names[c] in lags] or lagged
    G, of_halves = rate * _moved(*whole, lagged), half * _moved(*halved, lagged)
    K = np.zeros((d_y, d_phi, d_phi))
    K[:, :, lagged] = G @ np.linalg.pinv((of_halves - G)[:, lagged])
    return K


def _moved(moments: Moments, estimate: Estimate, lagged: list[int]) -> Floats:
    """Return G, how W moves with b: (d_y, d_phi, states)."""
    space = whiten(moments, estimate.instruments)
    S = moments.scatter[np.ix_(lagged, lagged)] / moments.weight
    G = estimate.influence @ (space.to_white[lagged].T @ S)
    return np.broadcast_to(G, (len(estimate.W), *G.shape[-2:]))


def jackknife_covariance(
    log: Log,
    design: Design,
    columns: Columns,
    table: AbsorbedTable,
    method: Method,
    nickell: Nickell,
) -> Floats | None:
    """Return the covariance of the corrected weights by units, (d_y d_phi, d_y d_phi).

    It is without a small-sample correction. None for a method that measures its own errors.
    """
    unit = nickell.unit
    log, table = _in_order(log, design, columns, table)
    at = table.names.index(unit)
    lengths = table.effects.counts[at]
    halves = AbsorbedTable(log, design, columns, lengths=lengths, halved=unit)
    of_halves = halves.effects.counts[at]
    padded = np.pad(of_halves, (0, 2 * len(lengths) - len(of_halves)))
    by = None if unit == log.roles.episode else unit
    solved = [_solved(rows, method, episodes=True, by=by) for rows in (table, halves)]
    parts = []
    for one, used in zip(solved, (lengths > 0, padded.reshape(-1, 2).any(axis=1)), strict=True):
        influence = _influence(*one)
        if influence is None or len(influence) != np.count_nonzero(used):
            return None
        whole = np.zeros((len(lengths), *influence.shape[1:]))
        whole[used] = influence
        parts.append(whole)
    K = _extrapolation(solved[0], solved[1], lengths, nickell.lags)
    each = parts[0] - np.einsum("ojk,eok->eoj", K, parts[1] - parts[0])
    flat = each.reshape(len(each), -1)
    covariance: Floats = flat.T @ flat
    return covariance


def _influence(moments: Moments, estimate: Estimate) -> Floats | None:
    """Return what each episode moves in the weights of rows without effects, (E, d_y, d_phi)."""
    if moments.episodes is None or not estimate.influence.size:
        return None
    space = whiten(moments, estimate.instruments)
    sums = cluster_products(estimate.residual_map, space, moments.episodes)
    L = np.broadcast_to(estimate.influence, (sums.shape[1], *estimate.influence.shape[-2:]))
    influence: Floats = np.einsum("jkr,ejr->ejk", L, sums) / moments.weight
    return influence


def with_jackknife_errors(
    estimate: Estimate, whole: Floats | None, episode: str | None, lost: int
) -> Estimate:
    """Return the estimate with the covariance of the corrected weights in its small-sample form.

    Only errors clustered by the episode count what the correction adds. `lost` are the degrees
    of freedom of effects that are not nested in episodes.
    """
    covariance = estimate.covariance
    if (
        whole is None
        or covariance is None
        or [name for name, _ in covariance.clusters] != [episode]
    ):
        return estimate
    d_y, d_phi = estimate.W.shape
    if covariance.debiased:
        count = covariance.clusters[0][1]
        whole = whole * (count / (count - 1) * (estimate.n - 1) / (estimate.n - d_phi - lost))
    blocks = np.array([whole.reshape(d_y, d_phi, d_y, d_phi)[i, :, i] for i in range(d_y)])
    joint = None if covariance.joint is None else whole
    return replace(estimate, covariance=replace(covariance, blocks=blocks, joint=joint))


def without_bias(estimate: Estimate, bias: Floats, moments: Moments) -> Estimate:
    """Return the estimate less the bias of its slopes, and the noise that this leaves."""
    design, gap = moments.design, bias.copy()
    if (constant := design.constant) is not None:
        phi = list(design.phi_columns)
        gap[:, constant] = 0.0
        gap[:, constant] = -gap @ moments.mean[phi]
    lost = moments.n / (moments.n - len(design.phi_names) - moments.lost())
    corrected = with_weights(moments, estimate, estimate.W - gap, estimate.K)
    return replace(corrected, noise_cov=lost * corrected.noise_cov)


def refuse_half_panel(nickell: Nickell | None, episode: Any) -> None:
    """Refuse a correction of a bias that is not there, or not known."""
    if nickell is None:
        raise InputError(
            "the half-panel jackknife needs absorbed effects of the episodes and next states "
            f"from the next row; absorb {episode!r}, or do not ask for the jackknife"
        )
    if nickell.unordered:
        raise InputError(
            f"the half-panel jackknife needs the rows of {nickell.unit!r} in the order of time; "
            "name the columns of unit and time (episode=, step=, --episode, --step)"
        )
    if not nickell.bias.size:
        raise InputError(
            f"the half-panel jackknife needs episodes that can be halved; these have "
            f"{nickell.steps:.3g} steps: use differences (difference=True, --difference)"
        )
