"""Partially linear IV: many controls are first partialled out of all other columns.

With y = W phi(x, a) + g(c) + e, where the controls c may act in any way, and E[e | c, x, z] = 0,

    y - E[y | c] = W (phi - E[phi | c]) + e,

instrumented by z - E[z | c] (Robinson, 1988; Chernozhukov and others, 2018, whose DML2 with one
instrument and action this is). The conditional means are predicted by a learner that has not seen
the row's fold; folds are made of whole clusters. The residuals are a log of their own: its moments
give W, and every standard error, first stage, test and robust set follows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Floats, Ints
from ivvi.errors import DataError, InputError
from ivvi.features.blocks import Power
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting.panels.nuisance_learners import called, cross_fitted, learners_of
from ivvi.logs import Batch, Counts, Log, Roles, concatenate
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.instruments.assignment_level import unnamed_columns
from ivvi.logs.tables.arrow import as_arrow
from ivvi.logs.tables.table import ArrowTable

DETERMINED = 1e-10
"""Share of a column's variance below which it counts as fully explained."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partialled:
    """Which controls were partialled out, and how.

    Attributes
    ----------
    controls
        Their columns.
    learner
        A word, ``module:object``, or the class of a learner that was given.
    folds, by
        How many, and the column whose groups lie whole in one of them; nothing for single rows.
    explained
        Share of each column's variance that the controls predict out of fold.
    later
        What a plan takes the controls for: ``held`` or ``drawn`` anew at every step; empty where
        there is no plan, and `refusal` says why.
    refusal
        Why the fit cannot be planned with, in a sentence.
    """

    controls: tuple[str, ...]
    learner: str
    folds: int
    by: str
    explained: dict[str, float]
    later: str = ""
    refusal: str = ""

    @property
    def line(self) -> str:
        """One line of text about the controls, the learner and what they predict."""
        shares = ", ".join(f"{share:.0%} of {name}" for name, share in self.explained.items())
        return (
            f"{len(self.controls)} partialled out by {self.learner}, {self.folds} folds of "
            f"{self.by or 'rows'}; they predict {shares}"
        )


@dataclass(frozen=True, slots=True, repr=False)
class PartialledRows:
    """Rows before and after what controls predict is subtracted.

    Attributes
    ----------
    log
        What is left, as a log of its own.
    partialled, counts
        How the controls were taken out, and of how many rows.
    rows
        The rows themselves, their states without the controls.
    controls
        The controls of each row, (n, k).
    left
        What is left of [x, a, z, y], (n, p), as in `log`.
    roles
        Roles of the columns of `rows`.
    units
        The values of the episode column, in the order of their numbers.
    groups
        What tells apart the groups of which folds were made, (n,), from 0 on.
    """

    log: Log
    partialled: Partialled
    counts: Counts
    rows: Batch
    controls: Floats
    left: Floats
    roles: Roles
    units: tuple[Any, ...]
    groups: Ints


def without_controls(
    log: Log,
    controls: Columns,
    learner: Any,
    folds: int,
    by: str | None,
    seed: int,
) -> PartialledRows:
    """Subtract from each column what the controls predict, in memory.

    Parameters
    ----------
    log
        The rows, with the cluster columns that are needed.
    controls
        Columns of the state, or others of the table that hold numbers.
    learner, folds, seed
        As for `estimate`.
    by
        Column whose groups are not divided between folds; None for the episodes, if any.
    """
    own = log.roles
    names, log = _with_controls(log, controls)
    rows, units, counts = _read(log)
    learners = learners_of(learner, seed)
    numbers, by = _groups(rows, log.roles, by)
    fold = folds_of(numbers, folds, seed, by)
    state = log.roles.state
    others = [i for i, name in enumerate(state) if name not in names]
    c = rows.x[:, [state.index(name) for name in names]]
    roles = _roles(log.roles, tuple(state[i] for i in others))
    columns = (*roles.state, *roles.action, *roles.instrument, *roles.next_state)
    values = np.hstack([rows.x[:, others], rows.a, rows.z, rows.y])
    residuals, explained = np.empty_like(values), {}
    for j, name in enumerate(columns):
        residuals[:, j] = values[:, j] - cross_fitted(
            learners, c, values[:, j], rows.weight, fold, name
        )
        explained[name] = _explained(values[:, j], residuals[:, j], rows.weight, name, names)
        logger.info("controls predict %.3f of %s", explained[name], name)
    table = _table(dict(zip(columns, residuals.T, strict=True)), rows, roles)
    label = f"{log.label}, {len(names)} controls partialled out"
    opened = Log(ArrowTable(table, label, log.table.files), roles, notes=log.notes)
    partialled = Partialled(names, called(learner), folds, by, explained)
    rows = replace(rows, x=rows.x[:, others])
    in_levels = _kept_roles(own, roles)
    return PartialledRows(opened, partialled, counts, rows, c, residuals, in_levels, units, numbers)


def with_unnamed(log: Log, residuals: PartialledRows) -> tuple[Log, list[str]]:
    """Return the residuals with columns of the log that the user did not name, and these names.

    There are none if they cannot be read for all rows.
    """
    residual_log, controls = residuals.log, residuals.partialled.controls
    names = [name for name in unnamed_columns(log.table, log.roles) if name not in controls]
    if not names or not isinstance(residual_log.table, ArrowTable):
        return residual_log, []
    try:
        read = _with_controls(log.clustered((*log.roles.cluster, *names)), controls)[1]
        walk = read.watched(None).batches(episodes=True)
        rows = concatenate([replace(batch, table=None) for batch in walk])
    except InputError:  # a column that nobody asked for need not be readable
        return residual_log, []
    if len(rows) != len(residuals.left):
        return residual_log, []
    table = residual_log.table.table
    for i, name in enumerate(names, len(log.roles.cluster)):
        values = pa.array(list(walk.clusters[i])).take(as_arrow(rows.clusters[i]))
        table = table.append_column(name, values)
    return Log(
        ArrowTable(table, residual_log.label, residual_log.table.files), residual_log.roles
    ), names


def _read(log: Log) -> tuple[Batch, tuple[Any, ...], Counts]:
    """Return all rows, the values of the episode column by number, and the counts."""
    roles = log.roles
    named = roles.episode is not None and roles.episode not in roles.cluster
    cluster = (*roles.cluster, str(roles.episode)) if named else roles.cluster
    read = Log(log.table, replace(roles, cluster=cluster), drop_missing=log.drop_missing)
    walk = read.watched(log.progress).batches(episodes=True)
    rows = concatenate([replace(batch, table=None) for batch in walk])
    units: tuple[Any, ...] = ()
    if roles.episode is not None:
        at = cluster.index(roles.episode)
        units, codes = tuple(walk.clusters[at]), rows.clusters[at]
        rows = replace(rows, episode=np.asarray(codes))
    return replace(rows, clusters=rows.clusters[: len(roles.cluster)]), units, walk.counts


def features_of(roles: Roles) -> FeatureMap:
    """Return the features of the residuals: their columns, without a constant."""
    state = (Power(1, "state"),) if roles.state else ()
    return FeatureMap((*state, Power(1, "input")))


def _with_controls(log: Log, controls: Columns) -> tuple[tuple[str, ...], Log]:
    """Return the names of the controls, and a log that reads those that were not states."""
    roles = log.roles
    taken = {*roles.action, *roles.instrument, *roles.next_state, *roles.keys}
    taken |= {name for name in (roles.reward, roles.weight, *roles.terminal) if name}
    free = [name for name in log.table.schema.names if name not in taken]
    available = list(dict.fromkeys((*roles.state, *free)))
    names = match_columns(controls, available, "controls")
    if not names:
        raise InputError("name at least one control column")
    more = tuple(name for name in names if name not in roles.state)
    if not more:
        return names, log
    carried = (*roles.carried, *((name, "") for name in more))  # they may change
    read = replace(roles, state=roles.state + more, carried=carried)
    return names, Log(log.table, read, drop_missing=log.drop_missing, notes=log.notes)


def _roles(roles: Roles, state: tuple[str, ...]) -> Roles:
    """Return the roles of the columns of the residuals."""
    return Roles(
        state=state,
        action=roles.action,
        instrument=roles.instrument,
        next_state=roles.outputs,
        reward=None,
        episode=roles.episode,
        step=roles.step,
        weight=roles.weight,
        cluster=roles.cluster,
        groups=roles.groups,
    )


def _kept_roles(roles: Roles, left: Roles) -> Roles:
    """Return the roles of a log without its controls; the residuals' if a control is an output."""
    carried = tuple(pair for pair in roles.carried if pair[0] in left.state)
    predicted = replace(roles, state=left.state, carried=carried)
    return predicted if predicted.outputs == left.next_state else left


def _groups(rows: Batch, roles: Roles, by: str | None) -> tuple[Ints, str]:
    """Return the groups that folds are made of, and the name of their column."""
    if by is not None and by in roles.cluster:
        return rows.clusters[roles.cluster.index(by)], by
    if roles.episode is None:
        return np.arange(len(rows)), ""
    return np.asarray(rows.episode), roles.episode


def folds_of(groups: Ints, folds: int, seed: int, by: str = "") -> Ints:
    """Deal groups out to folds at random, as evenly as their number allows; (n,) from 0 on."""
    distinct, number = np.unique(groups, return_inverse=True)
    count = len(distinct)
    if folds < 2:
        raise InputError(f"folds is {folds}; expected 2 or more")
    if count < folds:
        groups_named = f"values of {by!r}" if by else "rows"
        raise DataError(
            f"{count:,} {groups_named} cannot make {folds} folds; expected at most {count} folds"
        )
    dealt = np.random.default_rng(seed).permutation(count) % folds
    fold: Ints = dealt[number]
    return fold


def _explained(
    y: Floats, left: Floats, weight: Floats | None, name: str, controls: tuple[str, ...]
) -> float:
    """Return the share of a column's variance that controls explain; refuse a full share."""
    mean = np.average(y, weights=weight)
    total = float(np.average((y - mean) ** 2, weights=weight))
    rest = float(np.average(left**2, weights=weight))
    if rest <= DETERMINED * total:
        raise InputError(
            f"the controls {', '.join(controls[:3])} determine {name!r}, so nothing of it is left; "
            "leave out the control that does"
        )
    return 1 - rest / total


def _table(columns: dict[str, Floats], rows: Batch, roles: Roles) -> pa.Table:
    """Return the residuals with the keys, clusters and weights of their rows."""
    parts: dict[str, Any] = dict(columns)
    if roles.episode is not None:
        parts[roles.episode] = rows.episode
    if roles.step is not None:
        parts[roles.step] = rows.step
    if roles.weight is not None:
        parts[roles.weight] = rows.weight
    parts |= dict(zip(roles.cluster, rows.clusters, strict=True))
    return pa.table({name: as_arrow(np.asarray(v)) for name, v in parts.items()})
