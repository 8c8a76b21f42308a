"""Is something missing from a linear fit? Products of columns, and the row before.

With the right features, E[y - W phi | x, z] = 0, so the residual e has nothing in common with any
function q of states and instruments: their squares, their products, or those of the row before. A
product of state and instrument that explains e says that the effect of the action changes with
the state; the row before, that something lasts which the state does not hold: a unit's own level,
a lasting confounder, a delayed effect. With L = (A' B^-1 A)^-1 A' B^-1 the score

    s_i = (q_i - E[q phi'] L psi_i) e_i

has mean zero whatever the (small) error of W. All columns are about their means, those of a step
where many episodes share it: then a shock that all share is not taken for something that lasts.
The variance of s is the largest of those by row, by episode and by the clusters of the standard
errors. Columns are cut at their outer quantiles first: q may be any function of them, and a few
rows should not decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ivvi.diagnostics.distributions import chi2_tail
from ivvi.diagnostics.verdict import p_words
from ivvi.estimators import Estimate
from ivvi.features.design import Floats
from ivvi.logs import Batch, Roles
from ivvi.moments import Moments

Ints = NDArray[np.int64]
LEVEL = 1e-3
"""The p-value, adjusted for the number of tests, below which there is a warning."""
MATTERS = 0.005
"""Share of the residual's variance that a missing term must explain."""
FEWEST_ROWS, MOST_ROWS = 200, 4096
"""Rows to look at: with the most of them, a share of `MATTERS` is 4.5 standard errors."""
MOST_TERMS, FEWEST_SQUARES = 120, 10.0
"""Terms to look at, and t^2 of errors that are alike from which one is looked at more closely."""
ROWS_PER_STEP, FEWEST_CLUSTERS = 5, 20
ROUNDING, TINY = 1e-9, float(np.finfo(float).tiny)
CUT = 0.025
"""Share of rows beyond the outer quantiles, on either side."""


@dataclass(frozen=True, slots=True)
class Term:
    """Something that a linear fit leaves out: `columns`, what it `means`, and its values (n,)."""

    columns: tuple[str, ...]
    means: str
    values: Floats


@dataclass(frozen=True, slots=True)
class Omitted:
    """A term that explains a `share` of an output's residual."""

    term: Term
    output: str
    share: float
    p_value: float


@dataclass(frozen=True, slots=True)
class _Residuals:
    """Rows of a fit: psi (n, d_psi), phi (n, d_phi), e (n, d_y), their clusters and steps (n,)."""

    psi: Floats
    phi: Floats
    e: Floats
    outputs: tuple[str, ...]
    clusters: tuple[Ints, ...]
    step: Ints | None

    def missed(self, terms: list[Term]) -> Omitted | None:
        """Return the term that explains most of a residual, where one surely does."""
        if not terms:
            return None
        Q, e, stage = self._centred(_values(terms)), self._centred(self.e), self._first_stage()
        G = np.linalg.lstsq(stage.T @ stage, self._centred(self.phi).T @ Q, rcond=ROUNDING)[0]
        own, whole = np.sum(Q**2, axis=0), stage.T @ stage
        left = own - 2 * np.sum(G * (stage.T @ Q), axis=0) + np.sum(G * (whole @ G), axis=0)
        sums = Q.T @ e - G.T @ (stage.T @ e)
        share = sums**2 / np.maximum(np.outer(left, np.sum(e**2, axis=0)), TINY)
        share[left <= ROUNDING * own] = 0.0
        places = np.argwhere(share >= max(MATTERS, FEWEST_SQUARES / len(e))).tolist()
        for q, j in sorted(places, key=lambda at: -share[at[0], at[1]]):
            score = (Q[:, q] - stage @ G[:, q]) * e[:, j]
            p_value = share.size * self._p_value(score)
            if p_value < LEVEL:
                return Omitted(terms[q], self.outputs[j], float(share[q, j]), p_value)
        return None

    def _centred(self, V: Floats) -> Floats:
        """Take the means of columns away, those of each step where many rows share it."""
        codes = self.step
        if codes is None or len(codes) < ROWS_PER_STEP * (codes.max() + 1):
            means: Floats = V.mean(axis=0)
            return V - means
        counts = np.bincount(codes)[:, None]
        sums = np.column_stack([np.bincount(codes, weights=column) for column in V.T])
        rest: Floats = V - (sums / counts)[codes]
        return rest

    def _first_stage(self) -> Floats:
        """Return what psi predicts of phi, psi B^-1 A, (n, d_phi)."""
        psi, phi = self._centred(self.psi), self._centred(self.phi)
        size = np.sqrt(np.sum(psi**2, axis=0))
        psi = psi[:, size > 0] / size[size > 0]
        fitted: Floats = psi @ np.linalg.lstsq(psi.T @ psi, psi.T @ phi, rcond=ROUNDING)[0]
        return fitted

    def _p_value(self, score: Floats) -> float:
        """Return the largest p-value of a mean of zero, by rows, by episodes and by clusters.

        (sum s)^2 / sum s^2 is below its normal quantiles for any symmetric s, however heavy its
        tails (Efron, 1969).
        """
        sums = [
            np.bincount(codes, weights=score)
            for codes in self.clusters
            if codes.max() + 1 >= FEWEST_CLUSTERS  # steps are few, and their means are gone
        ]
        least = min(float(s.sum()) ** 2 / max(float(s @ s), TINY) for s in (score, *sums))
        return chi2_tail(least, 1)


def _values(terms: list[Term]) -> Floats:
    """Return the values of terms, (n, c), column by column in memory."""
    return np.array([term.values for term in terms]).T


def misspecified(
    estimate: Estimate, moments: Moments, head: Batch, roles: Roles
) -> tuple[str, ...]:
    """Return warnings about what a fit with linear features leaves out, from its first rows."""
    if not moments.design.is_raw:
        return ()
    rows = _first(head)
    if len(rows) < max(FEWEST_ROWS, 10 * moments.design.width) or not estimate.identified:
        return ()
    residuals = _residuals(estimate, moments, rows, roles)
    doubts = []
    before = _rows_before(rows)
    if len(before) >= FEWEST_ROWS and roles.derived:
        later = _residuals(estimate, moments, rows.chosen(before + 1), roles)
        if (one := later.missed(list(_lagged_terms(rows.chosen(before), roles)))) is not None:
            doubts.append(_lasting(one, roles))
    if (one := residuals.missed(list(_product_terms(rows, roles))[:MOST_TERMS])) is not None:
        doubts.append(_too_simple(one, roles))
    elif roles.derived and (one := _uneven(residuals, rows, roles)) is not None:
        doubts.append(_changing_noise(one, roles))
    return tuple(doubts)


def _first(head: Batch) -> Batch:
    """Return the first rows, those of weight zero left out."""
    if head.weight is None or head.weight.all():
        return head.first(MOST_ROWS)
    return head.chosen(np.flatnonzero(head.weight)[:MOST_ROWS])


def _residuals(estimate: Estimate, moments: Moments, rows: Batch, roles: Roles) -> _Residuals:
    design = moments.design
    V = np.ones((len(rows), design.width))
    V[:, design.varying] = design.rows(rows)
    e = V @ estimate.residual_map.T
    e[:, [i for i, name in enumerate(design.outputs) if name in estimate.exact]] = 0.0
    if rows.weight is not None:
        e = e * (rows.weight / rows.weight.mean())[:, None]
    episode, step = (None if roles.episode is None else v for v in (rows.episode, rows.step))
    groups = rows.clusters if episode is None else (episode, *rows.clusters)
    return _Residuals(
        psi=V[:, list(design.psi_columns)],
        phi=V[:, list(design.phi_columns)],
        e=e,
        outputs=design.outputs,
        clusters=tuple(np.unique(codes, return_inverse=True)[1] for codes in groups),
        step=None if step is None else np.unique(step, return_inverse=True)[1],
    )


def _rows_before(rows: Batch) -> Ints:
    """Return the rows whose next row is the next step of the same episode."""
    if rows.episode is None or rows.step is None:
        return np.empty(0, dtype=np.int64)
    steps = np.asarray(rows.step, dtype=np.float64)
    same = (rows.episode[1:] == rows.episode[:-1]) & (np.diff(steps) == 1)
    return np.flatnonzero(same)


def _lagged_terms(before: Batch, roles: Roles) -> Iterator[Term]:
    for names, values in ((roles.state, before.x), (roles.instrument, before.z)):
        for name, column in zip(names, _cut(values), strict=True):
            yield Term((name,), "before", column)


def _product_terms(rows: Batch, roles: Roles) -> Iterator[Term]:
    """Yield the products by their use: effects that vary, bends, states that work together."""
    x = dict(zip(roles.state, _cut(rows.x), strict=True))
    z = dict(zip(roles.instrument, _cut(rows.z), strict=True))
    for state, values in x.items():
        for instrument, moved in z.items():
            yield Term((state, instrument), "varies", values * moved)
    for means, columns in (("bends", x), ("dose", z)):
        for name, values in columns.items():
            if not ((values == values.min()) | (values == values.max())).all():
                yield Term((name,), means, values**2)
    for one, other in combinations(x, 2):
        yield Term((one, other), "together", x[one] * x[other])


def _uneven(residuals: _Residuals, rows: Batch, roles: Roles) -> Omitted | None:
    """Return an instrument with which the spread of a residual changes: the action does it.

    Levels of categories, and outputs of two values, have the spread that goes with their mean.
    """
    squares = residuals.e**2
    values = squares - squares.mean(axis=0)
    coded = {name for category in roles.categories for name in category.names}
    for j, output in enumerate(residuals.outputs):
        if output.removeprefix("next_") in coded or len(np.unique(rows.y[:, j])) == 2:
            values[:, j] = 0.0
    x = np.column_stack([np.ones(len(rows)), _cut(rows.x).T])
    spread = replace(residuals, e=values, psi=x, phi=x)  # the error of W is of second order
    return spread.missed(
        [term for term in _lagged_terms(rows, roles) if term.columns[0] in roles.instrument]
    )


def _cut(columns: Floats) -> Floats:
    """Return columns (n, d) as rows (d, n), cut at their outer quantiles and standardised."""
    values = np.ascontiguousarray(columns.T)
    low, high = np.quantile(values, (CUT, 1 - CUT), axis=1)
    rare = low == high  # nothing would be left of events that are rare
    low, high = np.where(rare, values.min(axis=1), low), np.where(rare, values.max(axis=1), high)
    values = np.clip(values, low[:, None], high[:, None])
    values -= values.mean(axis=1, keepdims=True)
    spread = values.std(axis=1, keepdims=True)
    scaled: Floats = values / np.where(spread > 0, spread, 1.0)
    return scaled


def _too_simple(one: Omitted, roles: Roles) -> str:
    """Say what linear features miss, and which would not."""
    columns, actions = one.term.columns, _acted(roles)
    what = {
        "varies": f"what {actions} does to {one.output} changes with {columns[0]}",
        "bends": f"{one.output} does not change in proportion to {columns[0]}",
        "dose": f"{one.output} does not change in proportion to {actions}",
        "together": f"{columns[0]} and {columns[-1]} work together on {one.output}",
    }[one.term.means]
    coded = {name for category in roles.categories for name in category.names}
    word = "linear:cross" if coded & set(columns) else "auto"
    return (
        f"linear features are too simple: {what} ({p_words(one.p_value)}); plans and values of "
        f"this fit may be far off: fit with --features {word} (phi={word!r})"
    )


def _acted(roles: Roles) -> str:
    """Name the actions; those of a category by its column."""
    column = {name: one.column for one in roles.categories for name in one.names}
    return " and ".join(dict.fromkeys(column.get(name, name) for name in roles.action))


def _changing_noise(one: Omitted, roles: Roles) -> str:
    """Say that the action moves the noise, which the model takes for the same everywhere."""
    return (
        f"{_acted(roles)} changes the spread of {one.output} and not only its mean: the spread "
        f"goes with {one.term.columns[0]} ({p_words(one.p_value)}); the model has one spread for "
        "all, so plans and values that depend on it (quadratic costs, thresholds) may be off"
    )


def _lasting(one: Omitted, roles: Roles) -> str:
    """Say that the row before still matters, and what to do."""
    name, episode = one.term.columns[0], roles.episode
    return (
        f"{one.output} depends on {name} of the row before, given this row "
        f"({p_words(one.p_value)}): something lasts that the states do not hold, such as a level "
        "of each episode's own, a lasting confounder or a delayed effect; the coefficients of the "
        "states are biased, and so are those of actions whose instrument lasts: fit with "
        f"--difference, --absorb {episode} (absorb={episode!r}) or --lags 1, and ask `ivvi check`"
    )
