"""Are rows lost more often where the instrument is high? Then the remaining rows are selected.

A row is lost if its action or outcome is missing and dropped, or if its episode ends early, so that
it has no next state. With l = 1 for a lost row, the instrument should not predict l, given the
state and the step. Both are regressed out of l and of z. With s_g the sum of the products of the
two residuals over the rows of a cluster, the statistic is t = sum s_g / sqrt(sum s_g^2).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Bools, Floats, Ints
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.logs import Log, Roles
from ivvi.logs.tables.arrow import as_numpy, missing

CHANCE = 1e-4
"""Probability, over all instruments, below which a loss that goes with one is no chance."""
FEWEST_LOST, FEWEST_CLUSTERS = 20, 50
"""Rows that must be lost, and clusters that the test needs."""
MOST_STEPS = 50
"""Most steps that get an effect of their own; later ones share the last."""


def lost_rows(log: Log) -> str:
    """Return a warning if rows are lost more often where an instrument is high, else ''."""
    roles = log.roles
    if log.is_residual or roles.weight or not (log.drop_missing or roles.derived):
        return ""
    columns = list(dict.fromkeys((*roles.columns, *roles.groups)))
    size = log.head_rows
    short = log.shortened(size)
    size = size if short is log else 2 * size
    block = next(iter(short.ordered_table.batches(columns, roles.numeric, size)), None)
    if block is None or (roles.derived and not log.ordered):
        return ""
    lost = _absent(block, roles) if log.drop_missing else np.zeros(block.num_rows, dtype=bool)
    place = np.zeros((block.num_rows, 2), dtype=np.int64)
    if roles.derived:
        ends, place = _ends(block, roles, lost)
        whole = block.num_rows < size
        lost = (lost | ends)[: None if whole else -1]
        block, place = block.slice(0, len(lost)), place[: len(lost)]
    x, z = (
        np.column_stack([as_numpy(block.column(n)).astype(float) for n in names])
        if names
        else np.empty((len(lost), 0))
        for names in (roles.state, roles.instrument)
    )
    usable = np.isfinite(x).all(axis=1) & np.isfinite(z).all(axis=1)
    if lost[usable].sum() < FEWEST_LOST or (~lost)[usable].sum() < FEWEST_LOST:
        return ""
    cluster = _cluster(block, roles)[usable]
    result = tested(lost[usable], x[usable], z[usable], place[usable], cluster)
    if result is None:
        return ""
    worst, t = result
    remedy = _remedy(block, roles, drops=log.drop_missing)
    return _sentence(roles.instrument[worst], z[usable, worst], lost[usable], t, remedy)


def tested(
    lost: Bools, x: Floats, z: Floats, place: Ints, cluster: Ints
) -> tuple[int, float] | None:
    """Return the instrument most clearly related to a loss, and its t, or None if none is."""
    if lost.sum() < FEWEST_LOST or (~lost).sum() < FEWEST_LOST:
        return None
    t, freedom = _tests(lost.astype(float), x, z, place, cluster)
    if freedom < FEWEST_CLUSTERS or not t.size:
        return None
    worst = int(np.argmax(np.abs(t)))
    if f_tail(float(t[worst]) ** 2, 1, freedom) * len(t) >= CHANCE:
        return None
    return worst, float(t[worst])


def by_half(z: Floats, rows: Bools) -> str:
    """Return the share of these rows where z is high, and elsewhere, in words."""
    middle = np.median(z)
    high = z > middle if (z > middle).any() else z >= middle
    return f"{rows[high].mean():.1%} where it is high, {rows[~high].mean():.1%} elsewhere"


def _sentence(name: str, z: Floats, lost: Bools, t: float, remedy: str) -> str:
    shares = by_half(z, lost)
    return (
        f"rows are lost {'more' if t > 0 else 'less'} often where {name} is high ({shares}): the "
        "remaining rows are a selected sample that depends on the instrument, so effects are "
        f"biased; {remedy}"
    )


def _remedy(block: pa.RecordBatch, roles: Roles, *, drops: bool) -> str:
    """Return what to do about the rows of a block that are lost."""
    for name in roles.action if drops else ():
        if missing(block.column(name)).any():
            return f"if an empty {name} means that none was given, write 0 there"
    if roles.derived and not roles.terminal:
        return (
            "if an episode that stops early has ended for good, name the column that says so "
            "(terminal=, --terminal)"
        )
    return "look for the outcomes that are missing, and fill them in"


def _absent(block: pa.RecordBatch, roles: Roles) -> Bools:
    """Return which rows miss an action or an outcome, or the state that follows them, (n,)."""
    reward = (roles.reward,) if roles.reward else ()
    own = [missing(block.column(n)) for n in (*roles.action, *roles.next_state, *reward)]
    absent: Bools = np.logical_or.reduce(own)
    return absent


def _ends(block: pa.RecordBatch, roles: Roles, absent: Bools) -> tuple[Bools, Ints]:
    """Return which rows have no next state, and the steps of rows from zero and as they are."""
    episode = _codes(block, str(roles.episode))
    step = as_numpy(block.column(str(roles.step))).astype(float)
    known = ~np.logical_or.reduce([missing(block.column(name)) for name in roles.predicted])
    follows = (np.diff(episode) == 0) & (np.diff(step) == 1) & known[1:]
    ends = ~np.append(follows, False)
    for name in roles.terminal:
        ends &= ~(as_numpy(block.column(name)) > 0)
    first = np.append(0, np.flatnonzero(np.diff(episode) != 0) + 1)
    since = np.arange(len(step)) - np.repeat(first, np.diff(np.append(first, len(step))))
    place = np.column_stack([since, np.clip(step - step.min(), 0, MOST_STEPS)])
    return ends, np.minimum(place, MOST_STEPS).astype(np.int64)


def _tests(lost: Floats, x: Floats, z: Floats, place: Ints, cluster: Ints) -> tuple[Floats, int]:
    """Return the statistic of each instrument, (d_z,), and its degrees of freedom."""
    scaled = (x - x.mean(axis=0)) / np.where(np.ptp(x, axis=0) > 0, x.std(axis=0), 1.0)
    partialled = _beside(np.column_stack([lost, z]), np.column_stack([scaled, scaled**2]), place)
    lost_left, moved = partialled[:, 0], partialled[:, 1:]
    codes = np.unique(cluster, return_inverse=True)[1]
    sums = np.column_stack([np.bincount(codes, lost_left * column) for column in moved.T])
    size = np.sqrt(np.sum(sums**2, axis=0))
    varies = (moved.std(axis=0) > 1e-6 * z.std(axis=0)) & (lost_left.std() > 1e-6)
    t = np.divide(sums.sum(axis=0), size, out=np.zeros(len(size)), where=varies & (size > 0))
    return t, int(np.count_nonzero(np.abs(sums).max(axis=1) > 0)) - 1


def _beside(outcomes: Floats, controls: Floats, place: Ints) -> Floats:
    """Return the residuals of outcomes (n, q) on controls (n, k) and effects of both steps.

    The effects are the same in all rows of a cell of the two steps, so that the normal equations
    need the sums over cells alone, and no row of indicators.
    """
    cells, at = np.unique(place @ [MOST_STEPS + 1, 1], return_inverse=True)
    steps = np.divmod(cells, MOST_STEPS + 1)
    effects = np.hstack([(one[:, None] == np.unique(one)).astype(float) for one in steps])
    columns, k = np.hstack([controls, outcomes]), controls.shape[1]
    sums = np.column_stack([np.bincount(at, column) for column in columns.T])
    across, crossed = effects.T @ sums, columns[:, :k].T @ columns
    own = effects.T @ (np.bincount(at)[:, None] * effects)
    gram = np.block([[crossed[:, :k], across[:, :k].T], [across[:, :k], own]])
    c = np.vstack([crossed[:, k:], across[:, k:]])
    w = np.linalg.lstsq(gram, c, rcond=1e-9)[0]
    left: Floats = outcomes - controls @ w[:k] - (effects @ w[k:])[at]
    return left


def _cluster(block: pa.RecordBatch, roles: Roles) -> Ints:
    """Number the independent draws: the groups of instruments, episodes, or rows."""
    names = [*roles.groups[:1], *([roles.episode] if roles.episode else [])]
    if not names or names[0] not in block.schema.names:
        return np.arange(block.num_rows)
    return _codes(block, names[0])


def _codes(block: pa.RecordBatch, name: str) -> Ints:
    coded = block.column(name).dictionary_encode(null_encoding="encode")
    return as_numpy(coded.indices).astype(np.int64)
