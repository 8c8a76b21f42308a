"""How much single rows, and rows that share a value, influence the effects of actions.

Row i moves the coefficient w by s_i / n (`ivvi.estimators.covariance.influence`). The variance of
w is the sum of the squares of s, added up first by what rows are clustered by. So a row whose
square is more than half of that sum decides the effect. And rows should be clustered by a column
that has no role if the sums of s over its values have larger squares than single rows: the ratio is
chi2(G) / G for G even groups of independent rows, G being (sum v)^2 / sum v^2 for groups of
variance v. If each date occurs in only one row, the rows are a series, and s may be autocorrelated:
with r_l its correlation over l rows, its variance is 1 + 2 sum_l (1 - l / (L + 1)) r_l times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.diagnostics.misspecification.outcome_columns import is_outcome
from ivvi.diagnostics.tails_and_quantiles import chi2_tail
from ivvi.errors import InputError
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.influence import Influence
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.logs import Batch, Log
from ivvi.logs.columns.times import as_dates
from ivvi.logs.instruments.assignment_level import FEWEST_GROUPS, ROWS_PER_GROUP
from ivvi.logs.schema import PATH
from ivvi.moments import Moments

LOOKED_AT = 8192
"""Rows that are looked at."""
DECIDES, FEWEST_ROWS = 0.5, 30
"""Share of an effect's variance by which a row decides it, and rows that make it no chance."""
FAR, BEYOND = 15.0, 3.0
"""How far off its residual must be: in median distances, and in that of the next one."""
FEW_ROWS = 1024
"""Rows that tell usual distances well enough for a first look."""
LARGER, LEVEL = 1.3, 1e-3
"""How much larger a variance by groups must be, and the p-value over all columns and effects."""


def deciding_row(estimate: Estimate, moments: Moments, rows: Batch, count: int) -> str:
    """Return a warning if one row makes up most of the variance of an effect, else ''.

    The rows are some of `count`.
    """
    if len(rows) < FEWEST_ROWS or not _has_outlier(estimate, moments, rows):
        return ""
    influence = Influence.of(estimate, moments, rows)
    if influence is None:
        return ""
    share = influence.s**2 / np.maximum(np.sum(influence.s**2, axis=0), np.finfo(float).tiny)
    row, effect = np.unravel_index(int(np.argmax(share)), share.shape)
    (i, j), design = influence.names[int(effect)], estimate.design
    apart = np.abs(influence.e[:, i] - np.median(influence.e[:, i]))
    usual = max(FAR * float(np.median(apart)), BEYOND * float(np.partition(apart, -2)[-2]))
    if share[row, effect] <= DECIDES or apart[row] <= usual:
        return ""
    y = rows.y[:, i]
    others = np.delete(y, row)
    place = f"row {int(row) + 1:,} of those used"
    if len(rows) < count:
        place = f"one of {len(rows):,} rows looked at"
    return (
        f"a single row dominates the effect of {design.phi_names[j]} on {design.outputs[i]}: "
        f"{place} makes up {share[row, effect]:.0%} of its variance; there {design.outputs[i]} is "
        f"{y[row]:.4g}, elsewhere {others.min():.4g} to {others.max():.4g}; if it is an error, "
        "correct it or leave it out (where=, --where)"
    )


def _has_outlier(estimate: Estimate, moments: Moments, rows: Batch) -> bool:
    """Return whether a residual is as far off as that of a dominating row, by a quick look."""
    varying, R = moments.design.varying, estimate.residual_map
    constant = np.delete(R, varying, axis=1).sum(axis=1)
    e = R[:, varying] @ moments.design.rows(rows).T + constant[:, None]  # (d_y, n)
    few = slice(None, None, max(1, e.shape[1] // FEW_ROWS))
    apart = np.abs(e - np.median(e[:, few], axis=1, keepdims=True))
    usual = np.median(apart[:, few], axis=1)
    candidates = np.flatnonzero(apart.max(axis=1) > FAR / 2 * usual)
    for one in apart[candidates]:
        second, first = np.partition(one, -2)[-2:]
        if first > BEYOND * second and first > FAR * np.median(one):
            return True
    return False


@dataclass(frozen=True, slots=True, repr=False)
class FirstRows(Compact):
    """Some rows with the number of each row's value, `codes`, of some columns of the table.

    `levels` are the values by number.
    """

    rows: Batch
    codes: dict[str, Ints]
    levels: dict[str, list[object]]

    @classmethod
    def of(cls, log: Log, columns: Sequence[str]) -> FirstRows | None:
        """Read them; None where they cannot be read."""
        asked = dict.fromkeys((*log.roles.cluster, *columns))
        names = tuple(name for name in asked if name != log.roles.episode)
        try:
            short = log.shortened(LOOKED_AT)
            size = LOOKED_AT if short is log else short.num_rows
            walk = short.clustered(names).watched(None).batches(size=size, episodes=True)
            rows = next(iter(walk), None)
        except InputError:  # a column that nobody asked for need not be readable
            return None
        if rows is None or not len(rows):
            return None
        levels = {name: list(one) for name, one in zip(names, walk.clusters, strict=True)}
        if log.is_residual:  # whose clusters are numbers of values
            own = getattr(log.table, "values_of", {})
            levels = {n: [own[n][i] for i in one] if n in own else one for n, one in levels.items()}
        return cls(rows, dict(zip(names, rows.clusters, strict=True)), levels)

    def times(self, name: str) -> Floats | None:
        """Return the values of a column of dates, years or months as numbers, or None."""
        levels = self.levels[name]
        if all(isinstance(one, int | np.integer) for one in levels):
            numbers = np.array(levels, dtype=np.float64)
            return None if as_dates(numbers) is None else numbers
        if not all(isinstance(one, str | date | np.datetime64) for one in levels):
            return None
        try:
            times = np.array(levels, dtype="datetime64[us]")
        except (ValueError, TypeError):
            return None
        return None if np.isnat(times).any() else times.astype(np.float64)


def alike_within(
    estimate: Estimate,
    moments: Moments,
    log: Log,
    errors: Resolved,
    others: Sequence[str],
    first: FirstRows | None,
) -> str:
    """Return a warning if rows with the same value of an unnamed column are alike, else ''.

    Those with the same outcome always are (`outcome_columns`).
    """
    several = [name for name in errors.clusters[1:] if not name.startswith(PATH)]
    if not others or several or errors.kind not in ("robust", "clustered"):
        return ""
    influence = None if first is None else Influence.of(estimate, moments, first.rows)
    if first is None or influence is None:
        return ""
    rows = first.rows
    path = next((n for n in errors.clusters if n in first.codes and n.startswith(PATH)), None)
    own = _own_clusters(rows, log, errors) if path is None else first.codes[path]
    found: list[tuple[float, str]] = []
    for name in others:
        codes, levels = first.codes[name], first.levels[name]
        if not FEWEST_GROUPS <= len(np.unique(codes)) <= len(rows) / ROWS_PER_GROUP:
            continue
        for s in influence.s.T:
            larger, p_value = _by_group(_without_trend(s, codes, levels), codes, own)
            if larger > LARGER and p_value * len(others) * len(influence.names) < LEVEL:
                found.append((larger, name))
    design = estimate.design
    larger, name = next(
        (
            one
            for one in sorted(found, reverse=True)
            if not is_outcome(design, rows, first.codes[one[1]])
        ),
        (1.0, ""),
    )
    if not name:
        return _alike_in_order(influence, log, errors, others, first)
    return (
        f"rows with the same {name} are correlated: standard errors clustered by {name} would be "
        f"{np.sqrt(larger):.1f} times as large; if {name} may have moved the instrument too (a "
        f"place, an hour), absorb it (absorb={name!r}, --absorb {name}), since clusters leave the "
        "bias; if such rows only belong together (one person, one "
        f"region), cluster by it (cluster={name!r}, --cluster {name}); if it is a trait of each "
        "row, add it to the states"
    )


def _alike_in_order(
    influence: Influence, log: Log, errors: Resolved, others: Sequence[str], first: FirstRows
) -> str:
    """Return a warning if rows that follow each other in an unnamed date are alike, else ''."""
    if errors.kind != "robust" or log.roles.episode is not None or log.is_residual:
        return ""
    for name in others:
        times = first.times(name)
        if times is None or len(np.unique(first.codes[name])) < len(first.rows):
            continue
        order = np.argsort(times[first.codes[name]])
        larger, p_value = max(map(_in_order, influence.s[order].T))
        if larger > LARGER and p_value * len(others) * len(influence.names) < LEVEL:
            return (
                f"rows that follow each other in {name} are correlated: standard errors that allow "
                f"for this would be about {np.sqrt(larger):.1f} times as large; if the rows are "
                "one series, add a column with a single value, such as series, and name both "
                f"(episode='series', step={name!r}, --episode series --step {name}): the errors "
                "are then HAC"
            )
    return ""


def _in_order(s: Floats) -> tuple[float, float]:
    """Return how much larger a series' variance is than that of independent rows, and its p."""
    s = s - s.mean()
    product, lags = s[1:] * s[:-1], int(2 * len(s) ** (1 / 3))
    total = float(s @ s)
    if product.sum() <= 0 or lags < 1:
        return 1.0, 1.0
    sums = [(1 - lag / (lags + 1)) * float(s[lag:] @ s[:-lag]) for lag in range(1, lags + 1)]
    p_value = chi2_tail(float(product.sum()) ** 2 / float(product @ product), 1)
    return 1 + 2 * sum(sums) / total, p_value


def _own_clusters(rows: Batch, log: Log, errors: Resolved) -> Ints:
    """Return the clusters that the errors already count, or else the rows themselves."""
    if not errors.clusters:
        return np.arange(len(rows))
    if errors.clusters[0] in log.roles.cluster:
        return rows.clusters[log.roles.cluster.index(errors.clusters[0])]
    return np.arange(len(rows)) if rows.episode is None else rows.episode


def _without_trend(s: Floats, codes: Ints, levels: list[object]) -> Floats:
    """Remove from s a trend in a number or date: traits, other outcomes, time."""
    if any(isinstance(value, str) for value in levels):
        return s
    rank = np.empty(len(levels))
    rank[np.argsort(np.array(levels))] = np.arange(len(levels))
    x = rank[codes] / max(len(levels) - 1, 1) - 0.5
    trend = np.column_stack([np.ones(len(x)), x, x**2, x**3])
    return np.asarray(s - trend @ np.linalg.lstsq(trend, s, rcond=None)[0])


def _by_group(s: Floats, codes: Ints, own: Ints) -> tuple[float, float]:
    """Return how much larger the variance by group is than with the counted clusters, and its p."""
    groups = np.unique(codes, return_inverse=True)[1]
    cells, first = np.unique(np.column_stack([groups, own]), axis=0, return_inverse=True)
    within = np.bincount(first.ravel(), weights=s)
    v = np.bincount(cells[:, 0], weights=within**2)
    if not v.sum() > 0:
        return 1.0, 1.0
    larger = float(np.sum(np.bincount(groups, weights=s) ** 2) / v.sum())
    even = float(v.sum() ** 2 / np.sum(v**2))
    return larger, chi2_tail(even * larger, even)
