"""Warnings about a fit from some rows of its log: its data, its features, its clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ivvi.diagnostics.misspecification.data_warnings import MOST_ROWS, cut_off, data_warnings
from ivvi.diagnostics.misspecification.omitted_terms import omitted_terms
from ivvi.diagnostics.misspecification.outcome_timing import explained_in_own_row, row_times
from ivvi.diagnostics.misspecification.prediction_checks import leaves_range, predicts_worse
from ivvi.diagnostics.misspecification.row_influence import FirstRows, alike_within, deciding_row
from ivvi.diagnostics.misspecification.shared_trends import (
    ChangedEffect,
    changed_by_column,
    changed_by_step,
)
from ivvi.estimators import Estimate, Method
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.fitting.panels.differences import DifferencedTable
from ivvi.fitting.panels.lag_detection import in_order, own_lags
from ivvi.logs import Batch, Log, Roles
from ivvi.logs.evenly_spaced_rows import spread
from ivvi.logs.instruments.assignment_level import ROWS_PER_GROUP, unnamed_columns
from ivvi.logs.schema import PATH
from ivvi.moments import Moments

TREND = "the instrument and the outcome share a trend or a season, which biases the effect"


def log_warnings(
    method: Method, log: Log, head: Batch, shard: Shard, estimate: Estimate, errors: Resolved
) -> tuple[tuple[str, ...], dict[str, str], Resolved]:
    """Return warnings about the rows of a log, terms that the features omit, and the errors.

    The errors carry a warning where rows are alike within a column that nobody named.
    """
    notes, omitted = row_warnings(method, log, head, shard, estimate)
    if log.is_residual:  # which has no such columns (`ivvi.fitting.panels.transformed_fit`)
        return notes, omitted, errors
    others = unnamed_columns(log.table, log.roles)
    doubts = unnamed_doubts(method, log, shard.moments, estimate, errors, others)
    shared, place, dependence = doubts
    if place:
        notes = (place, *notes)
    if dependence:
        errors, omitted = replace(errors, warning=dependence), {}  # rows are not independent
    return notes, shared or omitted, errors


def row_warnings(
    method: Method, log: Log, head: Batch, shard: Shard, estimate: Estimate
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return warnings about some rows of a log, `head`, and the terms that the features omit."""
    moments, roles = shard.moments, shard.roles
    rows = spread(head, MOST_ROWS)
    out_of_range = leaves_range(estimate, moments, head)
    far = out_of_range or predicts_worse(method, moments, head, roles)
    own = explained_in_own_row(head, roles)
    shared = _shared_by_steps(method, log, rows, moments, estimate)
    in_data = data_warnings(log, head, rows, shard.counts, linear=moments.design.is_raw)
    omitted: dict[str, str] = {}
    mended = (
        own is None and not in_data and not shared
    )  # what is wrong with the rows bends the fit too
    if mended and not log.is_residual and method.one_solution:
        omitted = omitted_terms(estimate, moments, *_by_episode(log, rows, roles))
    single = "" if roles.frequency else deciding_row(estimate, moments, rows, len(head))
    cut = "" if log.is_residual else cut_off(rows, roles.outputs)
    texts = (own.warning if own else "", far, *in_data, cut, single)
    return log.notes + tuple(text for text in texts if text), shared or omitted


def _shared_by_steps(
    method: Method, log: Log, head: Batch, moments: Moments, estimate: Estimate
) -> dict[str, str]:
    """Return a warning, with its output, if effects of the step change an effect; else {}."""
    column, uses_rows = log.roles.moment, _has_levels(log, moments) and method.uses_instruments
    if column is None or head.step is None or not uses_rows:
        return {}
    if log.roles.dates is not None and log.roles.dates not in log.roles.cluster:
        return {}
    times = row_times(head, log.roles, head.step)
    change = changed_by_step(estimate, moments, head, times)
    if change is None:
        return {}
    return {f"{change.words(column)}: {TREND}; {_to_absorb(log, column)}": change.output}


def _has_levels(log: Log, moments: Moments) -> bool:
    """Whether rows are in levels or less absorbed effects; differences are neither."""
    is_difference = isinstance(log.table, DifferencedTable)
    return log.is_residual or (moments.design.constant is not None and not is_difference)


def _to_absorb(log: Log, column: str) -> str:
    """Say how to absorb a column."""
    if log.roles.formula:
        return f"absorb it (name {column} between the bars of the formula)"
    names = ",".join((*getattr(log.table, "names", ()), column))
    return f"absorb it (absorb={names!r}, --absorb {names})"


def unnamed_doubts(
    method: Method,
    log: Log,
    moments: Moments,
    estimate: Estimate,
    errors: Resolved,
    others: Sequence[str],
) -> tuple[dict[str, str], str, str]:
    """Return warnings that columns which the user did not name give about the first rows.

    These are a dictionary from each warning of a trend that the instrument and an outcome share to
    that output, a note of a place that they share, and a warning that rows are alike.
    """
    schema, time = log.table.schema.names, log.roles.moment
    named = [n for n in log.roles.cluster if n in schema and n not in (time, log.roles.episode)]
    alone = errors.requested.kind == "auto" and not errors.warning
    if not (others or named):
        return {}, "", ""
    paths = [n for n in errors.clusters if n.startswith(PATH)]
    first = FirstRows.of(log, (*paths, *others))
    if first is None:
        return {}, "", ""
    known = {*getattr(log.table, "names", ()), *log.roles.groups}  # absorbed, or loo: instruments
    asked = [name for name in (*named, *others) if name not in known]
    if _has_levels(log, moments) and method.uses_instruments:
        changed = changed_by_column(estimate, moments, first, asked, log.roles.cluster)
        if changed is not None:
            return _shared_with(log, first, *changed)
    warning = alike_within(estimate, moments, log, errors, others, first) if alone else ""
    return {}, "", warning


def _shared_with(
    log: Log, first: FirstRows, column: str, change: ChangedEffect
) -> tuple[dict[str, str], str, str]:
    """Return what `unnamed_doubts` returns, for a column whose effects change an effect."""
    words, absorb = change.words(column), _to_absorb(log, column)
    if first.times(column) is None:
        text = any(isinstance(level, str) for level in first.levels[column])
        category = "" if text else f", or add it as a category (categorical={column!r})"
        if not text and log.roles.formula:
            category = f", or add C({column})"
        place = (
            f"{words}: if {column} was determined before the action, it moves both the "
            f"instrument and the outcome: {absorb}{category}; ignore this if it was determined "
            "afterwards"
        )
        return {}, place, ""
    if len(first.levels[column]) > len(first.rows) / ROWS_PER_GROUP:
        absorb = (
            f"add a coarser column made from {column}, such as its month, in which each value has "
            f"several rows, and absorb that ({_to_absorb(log, 'month').partition('(')[2]}"
        )
    return {f"{words}: {TREND}; {absorb}": change.output}, "", ""


def _by_episode(log: Log, head: Batch, roles: Roles) -> tuple[Batch, Roles]:
    """Return the rows with those of an episode one after another, where steps are known.

    Where states are the outputs of the row before, the roles are as of a log that derives these.
    """
    if head.episode is None or head.step is None or roles.episode is None:
        return head, roles
    units = np.unique(head.episode, return_inverse=True)[1]
    lags = None if roles.derived else own_lags(head, units, roles)
    if lags is not None and lags.in_order:
        roles = replace(roles, next_state=())
    return head if log.ordered else head.chosen(in_order(head, head.episode)), roles
