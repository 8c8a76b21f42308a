"""Is the instrument of the step before, or after, related to what is left of the outcome?

Absorbing the effects of units is only right if the noise of a row has nothing to do with the
instruments of *all* rows of its unit (strict exogeneity). It fails if an effect comes late, if
an instrument reacts to past outcomes, and if single units have trends. Take the rows whose unit has
a row one step before, with z' its instrument. Let y, A and Z be the outcome, the actions and the
instruments of these rows after effects of units and steps are absorbed and states partialled out.
With w = (A' P A)^-1 A' P y two-stage least squares (P projects on Z), and h what Z leaves of z',
the sum of

    s_i = (h - P A (A' P A)^-1 A' h)_i (y - A w)_i

is h' (y - A w), and its terms allow for w being estimated. It is zero but for noise. The variance
is that of rows and what units, the clusters of the fit, units that share an instrument's values or
path, and columns of the table that hold whole units add to it. The same with the step after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi.diagnostics.misspecification.outcome_columns import parts_of
from ivvi.diagnostics.misspecification.outcome_timing import (
    basis_of,
    codes_of,
    draws_of,
    left_by,
    row_times,
)
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.errors import DataError, InputError
from ivvi.features.design import Design
from ivvi.fitting.panels.lag_detection import in_order
from ivvi.logs import Batch, Log
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.instruments.assignment_level import unnamed_columns
from ivvi.moments.fixed_effects import EffectTally

LEVEL = 1e-3
"""The p-value, over all tests, below which there is a warning."""
MATTERS = 0.05
"""Correlation of the residual with an instrument of another step that is worth a warning."""
FEWEST_UNITS, FEWEST_GROUPS, FEWEST_PATHS = 10, 5, 10
"""Units, groups of other columns, and groups of units with one path of an instrument (which few
levels of it make by chance), from which a variance can be found."""
ROWS_PER_COLUMN, MOST_COLUMNS = 10, 60
"""Rows per column of the features that are needed, and columns that are looked at."""
STRONG = 10.0
"""First-stage F that the rows must have."""
MOST_ROWS = 1 << 15
"""Rows that are looked at."""


@dataclass(frozen=True, slots=True)
class Related:
    """An instrument of another step that is related to the residual of an output."""

    instrument: str
    output: str
    place: str
    correlation: float
    p_value: float

    def words(self, step: str) -> str:
        """Return a warning with the finding, its possible causes, and what to do."""
        return (
            f"{self.instrument} of the {step} {self.place} is related to what is left of "
            f"{self.output} after the effects of units (correlation {self.correlation:.2f}, "
            f"p = {self.p_value:.1g}), so the effect may be biased: the action acts with a delay "
            f"(add the action of the {step} before and its instrument, or use --lags 1, lags=1), "
            f"{self.instrument} reacts to earlier outcomes (add the outcome of the {step} before "
            "to the states), or single units have trends (take the trend of each unit out of all "
            "columns)"
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a panel by unit and step: states, actions, instruments and outputs.

    `groups` are the rows' units and other groups whose rows are no independent draws, `absorbed`
    those whose effects are absorbed.
    """

    parts: list[Floats]
    z: Floats
    weight: Floats | None
    unit: Ints
    rank: Ints
    absorbed: list[Ints]
    groups: list[Ints]

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the rows that have one a step later in their unit, and these, (m,) each."""
        follows = (np.diff(self.unit) == 0) & (np.diff(self.rank) == 1)
        first = np.flatnonzero(follows)
        return first, first + 1

    def related(self, own: Ints, other: Ints) -> Iterator[tuple[int, int, float, float]]:
        """Yield instrument, output, correlation and p-value for rows and those beside them."""
        columns = [*(part[own] for part in self.parts), self.z[other]]
        weight = None if self.weight is None else self.weight[own]
        left, used = _within(columns, weight, [codes[own] for codes in self.absorbed])
        x, A, Z, y, beside = left
        if not len(x) or not (A.any(axis=0).all() and y.any() and beside.any() and Z.any()):
            return
        basis = basis_of(x) if x.any() else x[:, :0]
        A, Z, y, beside = (left_by(basis, part) for part in (A, Z, y, beside))
        lost = basis.shape[1] + sum(len(np.unique(codes[own])) for codes in self.absorbed)
        solved = _solved(A, Z, len(x) - lost)
        if solved is None:
            return
        basis, fitted, inverse = solved
        e = y - A @ (inverse @ (fitted.T @ y))
        h = left_by(basis, beside)
        influence = h - fitted @ (inverse @ (A.T @ h))
        groups = [codes[own][used] for codes in self.groups]
        for j, i in np.ndindex(h.shape[1], y.shape[1]):
            size = float(np.linalg.norm(h[:, j]) * np.linalg.norm(e[:, i]))
            if size > 0 and np.linalg.norm(h[:, j]) > 1e-6 * np.linalg.norm(beside[:, j]):
                s = influence[:, j] * e[:, i]
                yield j, i, float(h[:, j] @ e[:, i]) / size, _p_value(s, groups)


def related_to_other_steps(
    log: Log,
    design: Design,
    absorb: Columns,
    clusters: Sequence[str] = (),
    exact: Sequence[str] = (),
) -> str:
    """Return a warning if an instrument is related to outcomes of other steps, else ''.

    `clusters` are those of the fit, and `exact` outputs without noise. Nothing is said of logs
    without steps, or whose units are not absorbed, and of next states that are derived: absorbing
    biases those anyway.
    """
    roles = log.roles
    names = match_columns(absorb, list(log.table.schema.names), "absorb")
    noisy = [i for i, name in enumerate(design.outputs) if name not in exact]
    if roles.episode not in names or roles.step is None or roles.derived or not noisy:
        return ""
    if roles.frequency or design.width > MOST_COLUMNS:
        return ""
    rows = _rows_of(log, design, names, noisy, clusters)
    if rows is None:
        return ""
    before, after = rows.pairs()
    if len(before) < ROWS_PER_COLUMN * design.width or rows.unit.max() + 1 < FEWEST_UNITS:
        return ""
    candidates = [
        Related(roles.instrument[j], design.outputs[noisy[i]], place, r, p_value)
        for place, own, other in (("before", after, before), ("after", before, after))
        for j, i, r, p_value in rows.related(own, other)
    ]
    sure = [
        candidate
        for candidate in candidates
        if candidate.p_value * len(candidates) < LEVEL and abs(candidate.correlation) >= MATTERS
    ]
    worst = max(sure, key=lambda related: abs(related.correlation), default=None)
    step = roles.dates or roles.step.removesuffix("_number")  # whose steps are counted
    return "" if worst is None else worst.words(step)


def _rows_of(
    log: Log, design: Design, names: Sequence[str], noisy: list[int], clusters: Sequence[str]
) -> _Rows | None:
    """Read the first rows in the order of units and steps; None where they cannot be read."""
    roles = log.roles
    dates = () if roles.dates is None else (roles.dates,)
    known = tuple(dict.fromkeys((*roles.cluster, *names, *dates)))
    for others in (unnamed_columns(log.table, roles), []):
        try:
            read = log.clustered(tuple(dict.fromkeys((*known, *others)))).watched(None)
            rows = read.head(episodes=True)
            break
        except InputError:  # a column that nobody asked for need not be readable
            rows = None
    if rows is None or rows.step is None or rows.episode is None:
        return None
    rows = rows.chosen(in_order(rows, rows.episode)[:MOST_ROWS])
    if rows.weight is not None and (rows.weight <= 0).any():
        return None
    unit = codes_of(np.asarray(rows.episode))
    step = np.asarray(rows.step, dtype=np.float64)
    codes = dict(zip(read.roles.cluster, map(codes_of, rows.clusters), strict=True))
    moment = codes_of(row_times(rows, read.roles, step))
    absorbed = [codes[name] for name in names if name != roles.episode]
    groups = [unit, *(codes[name] for name in clusters if name in codes)]
    groups += [moment] if {roles.step, roles.dates} & set(clusters) else []
    groups += [codes[name] for name in others if _holds(codes[name], unit)]
    groups = [group for group in groups if group.max() + 1 >= FEWEST_GROUPS]
    groups += [group for group in _shared(rows, unit, moment) if group.max() + 1 >= FEWEST_PATHS]
    parts = parts_of(design, rows, noisy)
    return _Rows(
        parts, rows.z, rows.weight, unit, codes_of(step), [unit, moment, *absorbed], groups
    )


def _shared(rows: Batch, unit: Ints, moment: Ints) -> list[Ints]:
    """Return the groups of units that have one path of the instruments, or meet in its values."""
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    value = np.unique(rows.z, axis=0, return_inverse=True)[1].ravel()
    cell, path = draws_of(value.astype(np.float64), unit, moment)
    units, cells = int(unit.max()) + 1, int(cell.max()) + 1
    edges = (np.ones(len(unit), np.int8), (unit, cell + units))
    graph = sparse.coo_array(edges, shape=(units + cells, units + cells))
    together = connected_components(graph.tocsr(), directed=False)[1][unit]
    return [path, codes_of(together)]


def _holds(codes: Ints, unit: Ints) -> bool:
    """Whether a column's groups hold several units, each of them whole."""
    pairs = np.unique(np.column_stack([unit, codes]), axis=0)
    return bool(len(pairs) == unit.max() + 1 > codes.max() + 1)


def _within(
    columns: list[Floats], weight: Floats | None, codes: list[Ints]
) -> tuple[list[Floats], Ints]:
    """Return columns less the effects, times the root of weights, and the rows that are used."""
    values = np.hstack(columns)
    codes = [codes_of(group) for group in codes]
    tally = EffectTally([str(j) for j in range(len(codes))], ())
    tally.add(values, weight, codes, ())
    try:
        effects = tally.solve()
    except DataError:  # all rows are alone in a group
        return [part[:0] for part in columns], np.zeros(0, dtype=np.int64)
    used = np.flatnonzero(effects.keeps(codes))
    left = effects.within(values, codes) - effects.centre
    spread = np.linalg.norm(values - values.mean(axis=0), axis=0)
    left[:, np.linalg.norm(left, axis=0) <= 1e-6 * spread] = 0.0
    left = left[used] if weight is None else left[used] * np.sqrt(weight[used])[:, None]
    ends = np.cumsum([part.shape[1] for part in columns])[:-1]
    return np.split(left, ends, axis=1), used


def _solved(A: Floats, Z: Floats, freedom: int) -> tuple[Floats, Floats, Floats] | None:
    """Return a basis of Z, the part of A that Z explains, and (A' P A)^-1; None if Z is weak."""
    basis = basis_of(Z[:, Z.any(axis=0)])
    fitted = basis @ (basis.T @ A)
    explained, rest = fitted.T @ fitted, A.T @ A - fitted.T @ fitted
    scale = np.sqrt(np.diag(A.T @ A))
    if basis.shape[1] < A.shape[1] or not (scale > 0).all():
        return None
    if np.linalg.eigvalsh(explained / np.outer(scale, scale))[0] <= 1e-9:
        return None
    ratio = float(np.linalg.eigvals(np.linalg.solve(explained, rest)).real.max())
    if freedom - basis.shape[1] < STRONG * basis.shape[1] * ratio:
        return None
    return basis, fitted, np.asarray(np.linalg.inv(explained), dtype=np.float64)


def _p_value(s: Floats, groups: Sequence[Ints]) -> float:
    """Return the p-value of a sum of zero; degrees of freedom are Satterthwaite's."""
    single = len(s) * float(np.var(s))
    parts = [(single, len(s) - 1)]
    for codes in groups:
        sums = np.bincount(codes, weights=s)[np.unique(codes)]
        if len(sums) > 1:
            added = len(sums) * float(np.var(sums, ddof=1)) - single
            parts.append((max(added, 0.0), len(sums) - 1))
    variance = sum(part for part, _ in parts)
    if not variance > 0:
        return 1.0
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    return f_tail(float(s.sum()) ** 2 / variance, 1, freedom)
