"""Is a context that changes within episodes independent from step to step, as plans assume?

Seasons and most weather depend on the step before. A plan that draws them independently adds up
other shocks than the world does, and its gain may be several times too large. Let c be the columns
of a context: indicators of its levels, or its rank and squared rank. If the draws are independent,
c of a row is independent of everything in the row before: its context, state and instrument (an
instrument stands for the action, which may be confounded with what comes next). With b one of these
three, the F test of

    c_t = m + B b_{t-1} + e_t

then has its nominal level, if no other row shares the draw of c_t. But episodes may share draws,
such as the weather of a day. If the means of c differ between steps by more than chance, two other
tests are used. Between steps: how much of the mean context of a step does that of the step before
explain? This share is compared with the share for steps in random order. Within steps: the
covariance of c_t and b_{t-1} over the episodes of a step is one number per step, and the mean of
these is compared with their spread (Fama and MacBeth 1973). This mean is zero if c is drawn
independently, whatever the episodes share. A column that counts, such as an age, is recognised by
its equal changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.diagnostics.misspecification.outcome_timing import row_times
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.logs import Batch, Roles
from ivvi.logs.columns.times import DT
from ivvi.logs.evenly_spaced_rows import spread

LEVEL = 1e-3
"""The p-value below which there is a doubt, adjusted for all tests but those between steps."""
MATTERS = 0.02
"""Share of a context that the row before must explain."""
SHARED = 0.05
"""The p-value below which means differ between steps."""
FEWEST_ROWS = 40
FEWEST_STEPS = 6
"""Steps that can be put into a random order."""
FEWEST_OF_LEVEL = 10
"""Rows without which a level is not looked at."""
MOST_LEVELS = 12
"""Values beyond which a column of numbers is looked at by rank."""
MOST_PAIRS = 100
"""Pairs of columns beyond which their correlations within steps are not looked at."""
MOST_ROWS, MOST_STEPS, ORDERS = 20_000, 100, 9_999


@dataclass(frozen=True, slots=True, repr=False)
class Pairs(Compact):
    """Rows that follow another of their episode: their contexts, the row before, and the step.

    Attributes
    ----------
    now
        Columns of the context (n, k).
    before
        What the row before held, (n, q) each, by name.
    step
        Number of the step of each row (n,).
    means
        Means of the columns at each step, (T, k), and of their levels' numbers, (T, 1), over all
        rows.
    shared
        Whether episodes seem to share draws.
    """

    now: Floats
    before: dict[str, Floats]
    step: Ints
    means: tuple[Floats, Floats]
    shared: bool


def remembered_contexts(head: Batch, roles: Roles) -> tuple[str, ...]:
    """Return a warning for each context that plans draw anew at each step, but the log does not."""
    drawn = {name for name, source in roles.carried if not source} - {DT}
    if not drawn or head.episode is None:
        return ()
    contexts = {c.column: c.names for c in roles.categories if drawn & set(c.names)}
    coded = {name for names in contexts.values() for name in names}
    contexts |= {name: (name,) for name in roles.state if name in drawn - coded}
    rows = _in_order(head)
    columns = {
        name: _columns(rows.x[:, [roles.state.index(one) for one in names]])
        for name, names in contexts.items()
    }
    texts = [_doubt(name, rows, roles, columns, len(contexts)) for name in contexts]
    return tuple(text for text in texts if text)


def _doubt(name: str, rows: Batch, roles: Roles, columns: dict[str, Floats], tests: int) -> str:
    """Return a warning if the row before explains one context, else ''."""
    pairs = _pairs(name, rows, roles, columns)
    if len(pairs.now) < FEWEST_ROWS or not pairs.now.any():
        return ""
    shares = _shares_within(pairs, tests) if pairs.shared else _shares(pairs, tests)
    if name in roles.state and _counts(rows, roles.state.index(name)):
        shares = {next(iter(pairs.before)): 1.0}
    if not shares:
        return ""
    source = max(shares, key=lambda one: shares[one])
    return (
        f"context {name} is not independent from step to step: {source} explains "
        f"{max(shares[source], 0.01):.0%} of it; plans and values, which draw it independently at "
        f"each step, may be far off; make it a state, so that it is predicted (--state {name} "
        f"instead of --context {name})"
    )


def _counts(rows: Batch, column: int) -> bool:
    """Return whether a column goes up, or down, by the same amount in every step of an episode."""
    same = np.diff(np.zeros(len(rows)) if rows.episode is None else rows.episode) == 0
    changes = np.diff(rows.x[:, column])[same]
    return bool(len(changes)) and bool(changes[0] != 0) and bool((changes == changes[0]).all())


def _in_order(head: Batch) -> Batch:
    """Return some rows by episode and step, those of weight zero left out."""
    head = spread(head, MOST_ROWS)
    keys = [head.episode] if head.step is None else [head.step.astype(float), head.episode]
    order = np.lexsort([key for key in keys if key is not None])
    if head.weight is not None:
        order = order[head.weight[order] > 0]
    return head.chosen(order)


def _columns(values: Floats) -> Floats:
    """Return the indicators of a context (n, k), or its rank and the square of that, centred."""
    if values.shape[1] > 1:
        return np.asarray(values - values.mean(axis=0))
    levels, codes, counts = np.unique(values[:, 0], return_inverse=True, return_counts=True)
    if len(levels) <= MOST_LEVELS:
        indicators = np.eye(len(levels))[codes.ravel()][:, 1:]
        return np.asarray(indicators - indicators.mean(axis=0))
    rank = ((np.cumsum(counts) - counts / 2) / counts.sum())[codes.ravel()] - 0.5
    return np.column_stack([rank, rank**2 - np.mean(rank**2)])


def _pairs(name: str, rows: Batch, roles: Roles, columns: dict[str, Floats]) -> Pairs:
    """Return the pairs of rows on which a context is tested."""
    episode = np.zeros(len(rows)) if rows.episode is None else rows.episode
    before = np.flatnonzero(episode[1:] == episode[:-1])
    now, own = before + 1, columns[name]
    frequent = np.minimum((own > 0).sum(axis=0), (own < 0).sum(axis=0)) >= FEWEST_OF_LEVEL
    responses = own[:, :1] if _is_ranked(own) else own[:, frequent]
    numbers = responses if _is_ranked(own) else own @ np.arange(1, own.shape[1] + 1)[:, None]
    predicted = [roles.state.index(one) for one in roles.predicted]
    steps = np.zeros(len(rows), dtype=np.int64)
    if rows.step is not None:
        steps = _numbered(row_times(rows, roles, rows.step.astype(float)))
    return Pairs(
        responses[now],
        {
            "the context of the row before": np.column_stack(list(columns.values()))[before],
            "the state of the row before": rows.x[before][:, predicted],
            "the instrument of the row before": rows.z[before],
        },
        _numbered(steps[now]),
        (_step_means(responses, steps), _step_means(numbers, steps)),
        _is_shared(responses, steps),
    )


def _is_ranked(columns: Floats) -> bool:
    return columns.shape[1] == 2 and len(np.unique(columns[:, 0])) > MOST_LEVELS


def _is_shared(columns: Floats, step: Ints) -> bool:
    """Return whether episodes share values at a step, or are more similar than by chance."""
    between, within = int(step.max()), len(step) - int(step.max()) - 1
    if between < 1 or within < FEWEST_ROWS or not columns.any():
        return False
    centred = columns - columns.mean(axis=0)
    if columns.shape[1] == 1 and len(np.unique(columns)) > MOST_LEVELS:
        different = len(np.unique(np.column_stack([step, columns]), axis=0))
        if different < len(step) / 2:
            return True
    means = _step_means(centred, step)[step]
    total, explained = (centred**2).sum(axis=0), (means**2).sum(axis=0)
    rest = np.maximum(total - explained, 1e-9 * total + 1e-300)
    F = float((explained / rest).max()) * within / between
    return bool(f_tail(F, between, within) * columns.shape[1] < SHARED)


def _shares(pairs: Pairs, tests: int) -> dict[str, float]:
    """Return the adjusted share that each part of the row before explains, where it is sure."""
    n, shares = len(pairs.now), {}
    total = pairs.now - pairs.now.mean(axis=0)
    sizes = (total**2).sum(axis=0)
    for name, before in pairs.before.items():
        basis = _basis(before)
        k = basis.shape[1]
        if not k or n < 10 * (k + 1):
            continue
        explained = ((basis.T @ total) ** 2).sum(axis=0)
        rest = np.maximum(sizes - explained, 1e-9 * sizes + 1e-300)
        F = float((explained / rest).max()) * (n - k - 1) / k
        p_value = f_tail(F, k, n - k - 1) * total.shape[1] * len(pairs.before) * tests
        share = 1 - float(rest.sum() / sizes.sum()) * (n - 1) / (n - k - 1)
        if p_value < LEVEL and share >= MATTERS:
            shares[name] = share
    return shares


def _shares_within(pairs: Pairs, tests: int) -> dict[str, float]:
    """Return the shares explained where episodes share draws: between and within steps."""
    step, shares = pairs.step, dict[str, float]()
    between = max(_ordered_share(series) for series in pairs.means)
    if between >= MATTERS:
        shares[next(iter(pairs.before))] = between
    now = _within(pairs.now, step)
    for name, columns in pairs.before.items():
        before = _within(columns, step)
        if not 0 < now.shape[1] * before.shape[1] <= MOST_PAIRS:
            continue
        products = (now[:, :, None] * before[:, None, :]).reshape(len(now), -1)
        draws = _step_means(products, step)[np.bincount(step) >= 2]  # correlations, one for a step
        if len(draws) < 3:
            continue
        mean, spread = draws.mean(axis=0), np.maximum(draws.var(axis=0, ddof=1), 1e-12)
        best = int((mean**2 / spread).argmax())
        F, share = len(draws) * float(mean[best] ** 2 / spread[best]), float(mean[best] ** 2)
        p_value = f_tail(F, 1, len(draws) - 1) * len(mean) * len(pairs.before) * tests
        if p_value < LEVEL and share >= MATTERS:
            shares[name] = max(share, shares.get(name, 0.0))
    return shares


def _within(columns: Floats, step: Ints) -> Floats:
    """Return columns less their means at each step, of mean square 1; those that vary there."""
    rest = columns - _step_means(columns, step)[step]
    size = np.sqrt((rest**2).mean(axis=0))
    varied = size > 1e-6 * np.abs(columns).max(axis=0, initial=0.0)
    return np.asarray(rest[:, varied] / size[varied])


def _ordered_share(means: Floats) -> float:
    """Return the share of the steps' means that those of the step before explain; 0 if by chance.

    Chance is the share in steps of a random order, which drawing anew makes as likely as theirs.
    """
    series = means[:MOST_STEPS]
    T, k = series.shape
    if k == 0 or max(FEWEST_STEPS, 2 * k + 2) > T:
        return 0.0
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.tile(np.arange(T), (ORDERS, 1)), axis=1)
    shares = _lag_shares(series[np.vstack([np.arange(T), orders])])
    p_value = float((shares >= shares[0] - 1e-9).mean())
    return float(shares[0]) if p_value < LEVEL else 0.0


def _lag_shares(series: Floats) -> Floats:
    """Return the share of the later values of series (m, T, k) that the earlier ones explain."""
    after, before = series[:, 1:], series[:, :-1]
    after = after - after.mean(axis=1, keepdims=True)
    before = before - before.mean(axis=1, keepdims=True)
    cross, own = (before.swapaxes(1, 2) @ one for one in (after, before))
    explained = cross * (np.linalg.pinv(own, rcond=1e-9, hermitian=True) @ cross)
    total = np.maximum((after**2).sum(axis=(1, 2)), 1e-300)
    return np.asarray(explained.sum(axis=(1, 2)) / total)


def _step_means(values: Floats, step: Ints) -> Floats:
    """Return the mean of each column of values (n, k) in each step, (T, k)."""
    count = np.bincount(step)
    sums = [np.bincount(step, weights=column) for column in values.T]
    return np.reshape(sums, (values.shape[1], len(count))).T / count[:, None]


def _numbered(values: NDArray[Any]) -> Ints:
    """Number values from 0 on, in their order."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _basis(columns: Floats) -> Floats:
    """Return an orthonormal basis of what columns (n, q) span beside a constant."""
    centred = columns - columns.mean(axis=0)
    scale = np.linalg.norm(centred, axis=0)
    varied = scale > 1e-9 * np.linalg.norm(columns, axis=0)
    if not varied.any():
        return np.empty((len(columns), 0))
    left, size, _ = np.linalg.svd(centred[:, varied] / scale[varied], full_matrices=False)
    return np.asarray(left[:, size > 1e-7 * size[0]])
