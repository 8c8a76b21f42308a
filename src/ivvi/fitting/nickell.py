"""Nickell's bias: fixed effects and lagged states in panels of few steps.

Taking the mean of an episode of T steps out of x' and of x mixes the noise of every step into
both, so that W is biased by about b / T, however many episodes there are (Nickell, 1981). With
effects of their own for the two halves of each episode the bias is about 2 b / T, and so

    W_half - W ~ b / T        (the bias)        2 W - W_half        (W without it)

to first order: the half-panel jackknife (Dhaene and Jochmans, 2015), here with one slope for
both halves. With u_i and v_i the influence of an episode on W and on W_half, its influence on the
corrected weights is 2 u_i - v_i, whose squares add up to their variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi.errors import DataError, IdentificationError, InputError
from ivvi.estimators import Estimate, Method
from ivvi.estimators.covariance.clusters import cluster_products
from ivvi.estimators.estimate import with_weights
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design, Floats, build_design
from ivvi.fitting.absorbing import AbsorbedTable
from ivvi.logs import Log
from ivvi.logs.schema import Columns
from ivvi.moments import Moments, compute_moments

TOLD = 0.25
"""Standard errors of bias from which on it is warned of."""


@dataclass(frozen=True, slots=True)
class Nickell:
    """The bias of slopes of lagged states after absorbing the episodes' effects.

    Attributes
    ----------
    bias
        Estimate of it, (d_y, d_phi); empty where episodes are too short to be halved.
    steps
        Mean number of steps of an episode.
    corrected
        Whether the weights are without it: by the half-panel jackknife.
    """

    bias: Floats
    steps: float
    corrected: bool = False

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
        if worst is None:
            return f"not known: {self.steps:.3g} steps an episode are too few to halve"
        i, j, ratio = worst
        names = estimate.design.phi_names[j], estimate.design.outputs[i]
        bias = f"{self.bias[i, j]:+.3g} ({ratio:.2g} standard errors) for {names[0]} on {names[1]}"
        return f"at most about {bias}" + (", taken out (half-panel jackknife)" * self.corrected)

    def warning(self, estimate: Estimate) -> str:
        """Return what to know before believing the estimate; empty if nothing."""
        worst = self.worst(estimate)
        if self.corrected or (worst is not None and worst[2] < TOLD):
            return ""
        return (
            f"Nickell bias of lagged states with {self.steps:.3g} steps an episode: "
            f"{self.line(estimate)}; take it out with half_panel (--half-panel), or use "
            "differences (--difference)"
        )


def nickell_bias(
    log: Log, design: Design, columns: Columns, table: AbsorbedTable, method: Method, W: Floats
) -> Nickell | None:
    """Estimate the bias of W (of the rows without effects); None where there is none."""
    episode = log.roles.episode
    if not log.roles.derived or episode not in table.names:
        return None
    lengths = table.effects.counts[table.names.index(episode)]
    steps = float(lengths.sum() / np.count_nonzero(lengths))
    try:
        halves = AbsorbedTable(log, design, columns, lengths=lengths)
        rows = Log(halves, halves.roles)
        moments, _ = compute_moments(rows, build_design(rows, *halves.features))
        halved = method.solve(moments, rows)
    except (DataError, IdentificationError, InputError):
        return Nickell(np.empty((0, 0)), steps)
    return Nickell(halved.W - W, steps)


def jackknife_covariance(
    log: Log, design: Design, columns: Columns, table: AbsorbedTable, method: Method
) -> Floats | None:
    """Return the covariance of 2 W - W_half by episodes, (d_y d_phi, d_y d_phi).

    It is without a small-sample correction. None for a method that measures its own errors.
    """
    at = table.names.index(str(log.roles.episode))
    lengths = table.effects.counts[at]
    halves = AbsorbedTable(log, design, columns, lengths=lengths)
    of_halves = halves.effects.counts[at]
    padded = np.pad(of_halves, (0, 2 * len(lengths) - len(of_halves)))
    parts = []
    for rows, used in ((table, lengths > 0), (halves, padded.reshape(-1, 2).any(axis=1))):
        influence = _influence(rows, method)
        if influence is None or len(influence) != np.count_nonzero(used):
            return None
        whole = np.zeros((len(lengths), influence.shape[1]))
        whole[used] = influence
        parts.append(whole)
    each = 2 * parts[0] - parts[1]
    covariance: Floats = each.T @ each
    return covariance


def _influence(table: AbsorbedTable, method: Method) -> Floats | None:
    """Return what each episode moves in the weights of rows without effects, (E, d_y d_phi)."""
    rows = Log(table, table.roles)
    moments, _ = compute_moments(rows, build_design(rows, *table.features), episodes=True)
    estimate = method.solve(moments, rows)
    if moments.episodes is None or not estimate.influence.size:
        return None
    space = whiten(moments, estimate.instruments)
    sums = cluster_products(estimate.residual_map, space, moments.episodes)
    L = np.broadcast_to(estimate.influence, (sums.shape[1], *estimate.influence.shape[-2:]))
    moved = np.einsum("jkr,ejr->ejk", L, sums) / moments.weight
    influence: Floats = moved.reshape(len(moved), -1)
    return influence


def with_jackknife_errors(
    estimate: Estimate, whole: Floats | None, episode: str | None, lost: int
) -> Estimate:
    """Return the estimate with the covariance of the corrected weights in its small-sample form.

    Only errors clustered by the episode count what the correction adds. `lost` are the degrees
    of freedom of effects that are not nested in episodes.
    """
    held = estimate.covariance
    if whole is None or held is None or [name for name, _ in held.clusters] != [episode]:
        return estimate
    d_y, d_phi = estimate.W.shape
    if held.debiased:
        count = held.clusters[0][1]
        whole = whole * (count / (count - 1) * (estimate.n - 1) / (estimate.n - d_phi - lost))
    blocks = np.array([whole.reshape(d_y, d_phi, d_y, d_phi)[i, :, i] for i in range(d_y)])
    joint = None if held.joint is None else whole
    return replace(estimate, covariance=replace(held, blocks=blocks, joint=joint))


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


def refuse_half_panel(found: Nickell | None, episode: Any) -> None:
    """Refuse a correction of a bias that is not there, or not known."""
    if found is None:
        raise InputError(
            "the half-panel jackknife is for absorbed effects of the episodes with next states "
            f"that are the states of the next row; absorb {episode!r}, or leave it out"
        )
    if not found.bias.size:
        raise InputError(
            f"the half-panel jackknife needs episodes that can be halved; these have "
            f"{found.steps:.3g} steps: use differences (--difference)"
        )
