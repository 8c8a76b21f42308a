"""Do effects change once step, date or place effects are added? Then z and y share a cause.

An instrument that is random only within a month or a site is correlated with everything else that
differs between months or sites. The table shows it: with y, a, z less what states explain (0), and
less the means of each month too (1), and w = L y two-stage least squares of either,

    w_0 - w_1 = sum_i s_i,   s_i = L_0i (y_0 - a_0 w_1)_i - L_1i (y_1 - a_1 w_1)_i,

which is zero but for noise if the instrument has nothing to do with the month (compare Hausman,
1978). The variance is about the mean and two-way: that of rows, and what episodes, clusters and
steps add to it. So shocks to the instrument and to the outcome that all rows of a step share, but
that are independent of each other, raise no alarm. If each date occurs only once, there are no
means per date: a cubic in time replaces them, and stretches of time replace the steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.diagnostics.misspecification.outcome_columns import from_means, is_outcome, parts_of
from ivvi.diagnostics.misspecification.outcome_timing import (
    FEWEST_CLUSTERS,
    basis_of,
    codes_of,
    left_by,
    stretches,
)
from ivvi.diagnostics.misspecification.row_influence import FirstRows
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.estimators import Estimate
from ivvi.logs import Batch
from ivvi.logs.evenly_spaced_rows import spread
from ivvi.logs.instruments.assignment_level import ROWS_PER_GROUP
from ivvi.moments import Moments

MOST_ROWS = 8192
"""Rows that are looked at."""
LEVEL, MATTERS = 1e-3, 0.1
"""The p-value over all effects, and the share of an effect that the change must be."""
FEWEST_STEPS, ROWS_PER_STEP = 8, 5
"""Steps that are draws, and rows of each, without which nothing is said."""
STRONG, ROWS_PER_COLUMN = 10.0, 10
"""First-stage F, with and without the effects, and rows per column that a comparison needs."""
STRETCHES = 40
"""Stretches of time where each date comes once."""
FEWEST_WHOLE, MANY_WHOLE, ROWS_PER_WHOLE = 6, 30, 10
"""Values of a column of whole numbers that a cubic does not exhaust, and that two do not; rows of
each value."""
WITHIN, BETWEEN = 0.5, 0.95
"""Correlations that tell a mean over other episodes of a group: the negative one with the actions
of the own episode within groups, and that with the means of the groups."""
MOST_COLUMNS = 60
"""Columns of the features that are looked at."""


@dataclass(frozen=True, slots=True)
class ChangedEffect:
    """An effect of `feature` on `output`, `without` and `given` the effects of a column."""

    feature: str
    output: str
    without: float
    given: float
    p_value: float

    def words(self, column: str) -> str:
        """Say how the effect changes."""
        return (
            f"the effect of {self.feature} on {self.output} changes from {self.without:.3g} to "
            f"{self.given:.3g} once effects of {column} are included (p = {self.p_value:.1g})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class _Stage(Compact):
    """Rows less their means and what states explain; `L` (p, n) maps y to the effects."""

    a: Floats
    y: Floats
    L: Floats

    @classmethod
    def of(cls, parts: Sequence[Floats], codes: Ints, weight: Floats | None) -> _Stage | None:
        """Partial means by group and x out of a, z and y; None if z explains too little of a."""
        x, a, z, y = (from_means(part, codes, weight) for part in parts)
        if x.shape[1]:
            basis = basis_of(x)
            a, z, y = (left_by(basis, part) for part in (a, z, y))
        if not (z.any(axis=0).any() and a.any(axis=0).all()):
            return None
        basis = basis_of(z[:, z.any(axis=0)])
        fitted = basis @ (basis.T @ a)
        explained, rest = fitted.T @ fitted, a.T @ a - fitted.T @ fitted
        scale = np.sqrt(np.diag(a.T @ a))
        inner = explained / np.outer(scale, scale)
        if basis.shape[1] < a.shape[1] or np.linalg.eigvalsh(inner)[0] <= 1e-9:
            return None
        freedom = len(a) - codes.max() - 1 - x.shape[1] - basis.shape[1]
        ratio = np.linalg.eigvals(np.linalg.solve(explained, rest)).real.max()
        if freedom < STRONG * basis.shape[1] * ratio:
            return None
        return cls(a, y, np.asarray(np.linalg.inv(explained) @ fitted.T, dtype=np.float64))


def changed_effect(
    estimate: Estimate,
    moments: Moments,
    rows: Batch,
    codes: Ints,
    groups: Sequence[Ints],
    *,
    times: Floats | None = None,
    smooth: Floats | None = None,
    tests: int = 1,
) -> ChangedEffect | None:
    """Return the effect that changes most surely with effects of the `codes` of rows, or None.

    With `times` (n,), a cubic of these takes the place of effects; what is `smooth` (n, k) counts
    as explained without them. Rows of one of the `groups` are no independent draws; `tests` is how
    many columns are asked.
    """
    design = moments.design
    free = [j for j in design.phi_columns if j not in design.shared]
    noisy = [i for i, name in enumerate(design.outputs) if name not in estimate.exact]
    few = len(rows) < ROWS_PER_COLUMN * design.width or design.width > MOST_COLUMNS
    if few or not (free and noisy) or (rows.weight is not None and (rows.weight <= 0).any()):
        return None
    parts = parts_of(design, rows, noisy)
    one_group, beside = np.zeros(len(rows), dtype=np.int64), parts[0]
    if times is not None:
        codes, x = one_group, (times - times.mean()) / max(float(np.ptp(times)), 1e-300)
        beside = np.column_stack([parts[0], x, x**2, x**3])
    elif _leaves_one_out(parts[1], parts[2], codes, rows.episode):
        return None
    plain = None
    if smooth is not None:
        plain = _Stage.of(parts, one_group, rows.weight)
        parts = [np.column_stack([parts[0], smooth]), *parts[1:]]
    without = _Stage.of(parts, one_group, rows.weight)
    given = None if without is None else _Stage.of([beside, *parts[1:]], codes, rows.weight)
    if without is None or given is None:
        return None
    w = given.L @ given.y
    change = without.L @ without.y - w
    rest, rest_given = without.y - without.a @ w, given.y - given.a @ w
    worst: ChangedEffect | None = None
    for j, i in np.argwhere(np.abs(change) >= MATTERS * np.maximum(abs(w), abs(w + change))):
        s = without.L[j] * rest[:, i] - given.L[j] * rest_given[:, i]
        p_value = _p_value(s, groups) * w.size * tests
        if p_value < (LEVEL if worst is None else worst.p_value):
            names = design.phi_names[free[j]], design.outputs[noisy[i]]
            before = float((w + change)[j, i] if plain is None else (plain.L @ plain.y)[j, i])
            worst = ChangedEffect(*names, before, float(w[j, i]), p_value)
    return worst


def changed_by_step(
    estimate: Estimate, moments: Moments, head: Batch, times: Floats
) -> ChangedEffect | None:
    """Return the effect that changes with effects of the step, if episodes share steps."""
    rows = spread(head, MOST_ROWS)
    if rows.episode is None or len(rows) < FEWEST_STEPS * ROWS_PER_STEP:
        return None
    step = codes_of(times[: len(rows)])
    if not FEWEST_STEPS <= step.max() + 1 <= len(rows) / ROWS_PER_STEP:
        return None
    sets = [stretches(rows.episode), *(codes_of(one) for one in rows.clusters)]
    groups = [one for one in sets if one.max() + 1 >= FEWEST_CLUSTERS]
    return changed_effect(estimate, moments, rows, step, [*groups, step])


def changed_by_column(
    estimate: Estimate,
    moments: Moments,
    first: FirstRows,
    columns: Sequence[str],
    own: Sequence[str],
) -> tuple[str, ChangedEffect] | None:
    """Return the column of text, numbers or dates whose effects change an effect, and how.

    Its values must hold several rows each or, dates, come in order. Few values are what they are;
    many are draws, whose rows are no independent ones, as those of the errors' `own` columns. Of
    whole numbers only what no smooth function of them explains is held against an effect: an age
    is no place. Neither is a grade that was made from the outcome (`outcome_columns`).
    """
    rows, worst = first.rows, None
    asked: dict[str, tuple[Floats | None, Floats | None]] = {}
    for name in columns:
        times, text = first.times(name), any(isinstance(one, str) for one in first.levels[name])
        values = len(np.unique(first.codes[name]))
        several = 1 < values <= len(rows) / ROWS_PER_GROUP
        if (several and text) or (times is not None and values > 1):
            asked[name] = None if several or times is None else times[first.codes[name]], None
        elif several and (smooth := _smooth(first, name)) is not None:
            asked[name] = None, smooth
    for name, (times, smooth) in asked.items():
        codes = codes_of(first.codes[name])
        sets = [codes_of(first.codes[other]) for other in own]
        order = np.argsort(np.argsort(codes if times is None else times))
        sets += [codes if times is None else order * STRETCHES // len(rows)]
        sets += [] if rows.episode is None else [stretches(rows.episode)]
        groups = [one for one in sets if one.max() + 1 >= FEWEST_CLUSTERS]
        how: dict[str, Any] = {"times": times, "smooth": smooth, "tests": len(asked)}
        change = changed_effect(estimate, moments, rows, codes, groups, **how)
        if change is None or (worst is not None and change.p_value >= worst[1].p_value):
            continue
        if times is None and is_outcome(estimate.design, rows, codes, smooth):
            continue
        worst = (name, change)
    return worst


def _smooth(first: FirstRows, name: str) -> Floats | None:
    """Return cubics (n, k) of a column of whole numbers, of its values and of their ranks.

    None where it has too few values for anything to be left, or too many of one row.
    """
    levels = first.levels[name]
    if not all(isinstance(one, int | np.integer) for one in levels):
        return None
    values = np.array(levels, dtype=np.float64)[first.codes[name]]
    distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) < FEWEST_WHOLE or len(values) < ROWS_PER_WHOLE * len(distinct):
        return None
    place = codes / (len(distinct) - 1) - 0.5
    cubics = [place, place**2, place**3]
    if len(distinct) >= MANY_WHOLE:
        rank = ((np.cumsum(counts) - counts / 2) / len(values))[codes] - 0.5
        cubics += [rank, rank**2, rank**3]
    return np.column_stack(cubics)


def _leaves_one_out(
    actions: Floats, instruments: Floats, codes: Ints, episode: Ints | None
) -> bool:
    """Return whether an instrument is the mean of an action in other rows, or episodes, of a group.

    Then it falls with the own action within each group, exactly in proportion: that it has another
    effect there is how it is made. If it leaves out episodes, it rises with the means of groups,
    and falls within them with the sums of episodes, of which the rows may be a part.
    """
    if not (actions.size and instruments.size) or codes.max() == 0:
        return False
    left_a, left_z = (from_means(part, codes, None) for part in (actions, instruments))
    if any(_falls_in_proportion(a, z, codes) for a, z in itertools.product(left_a.T, left_z.T)):
        return True
    if episode is None:
        return False
    own = codes_of(episode)
    unit = codes_of(codes * (own.max() + 1) + own)
    sums, means = _by_group(left_a, unit), _by_group(left_z, unit) / np.bincount(unit)
    others = (_by_group(part, codes) / np.bincount(codes) for part in (actions, instruments))
    within, between = _correlations(sums, means), _correlations(*others)
    return bool(((within < -WITHIN) & (between > BETWEEN)).any())


def _by_group(columns: Floats, codes: Ints) -> Floats:
    """Return the sums of columns (n, d) by group, (d, groups)."""
    return np.array([np.bincount(codes, column) for column in columns.T])


def _correlations(rows: Floats, others: Floats) -> Floats:
    """Return the correlation of each row (d, n) with each of the others (k, n)."""
    one, other = (part - part.mean(axis=1, keepdims=True) for part in (rows, others))
    sizes = np.outer(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1))
    correlations: Floats = one @ other.T / np.maximum(sizes, np.finfo(float).tiny)
    return correlations


def _falls_in_proportion(a: Floats, z: Floats, codes: Ints) -> bool:
    """Return whether z = -c a in each group, with a c of its own."""
    if not (a @ z < 0):
        return False
    products, of_a, of_z = (np.bincount(codes, v) for v in (a * z, a * a, z * z))
    size, nothing = of_a * of_z, 1e-9 * float(np.sqrt((of_a * of_z).max()))
    apart = np.sqrt(np.maximum(size - products**2, 0.0))
    near = apart <= np.maximum(1e-3 * np.sqrt(size), nothing)
    return bool((products <= nothing).all() and near.all())


def _p_value(s: Floats, groups: Sequence[Ints]) -> float:
    """Return the p-value of a sum of zero; its variance is that of rows and what groups add."""
    single = variance = len(s) * float(np.var(s))
    most, freedom = 0.0, len(s) - 1
    for codes in groups:
        sums = np.bincount(codes, weights=s)
        added = len(sums) * float(np.var(sums, ddof=1)) - single
        variance += max(added, 0.0)
        if added > most:
            most, freedom = added, len(sums) - 1
    return f_tail(float(s.sum()) ** 2 / max(variance, 1e-300), 1, freedom)
