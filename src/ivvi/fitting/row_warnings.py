"""What the first rows of a log say against a fit: its data, its features, its clusters."""

from __future__ import annotations

from dataclasses import replace

from ivvi.diagnostics.data_warnings import cut_off, data_warnings
from ivvi.diagnostics.omitted_terms import omitted_terms
from ivvi.diagnostics.prediction_checks import leaves_range, predicts_worse
from ivvi.diagnostics.row_influence import alike_within, deciding_row
from ivvi.diagnostics.timing import explained_in_own_row
from ivvi.estimators import Estimate, Method
from ivvi.estimators.covariance.resolved_errors import Resolved
from ivvi.fitting.own_lags import in_order, own_lags
from ivvi.fitting.saved_moments import Shard
from ivvi.logs import Batch, Log, Roles
from ivvi.logs.instrument_groups import unnamed_columns
from ivvi.moments import Moments


def row_warnings(
    method: Method, log: Log, head: Batch, shard: Shard, estimate: Estimate
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return warnings about the first rows of a log, and the terms that the features omit."""
    moments, roles = shard.moments, shard.roles
    out_of_range = leaves_range(estimate, moments, head)
    far = out_of_range or predicts_worse(method, moments, head, roles)
    own = explained_in_own_row(head, roles)
    in_data = data_warnings(log, head, shard.counts, linear=moments.design.is_raw)
    omitted: dict[str, str] = {}
    mended = own is None and not in_data  # what is wrong with the rows bends the fit too
    if mended and not log.is_residual and method.one_solution:
        omitted = omitted_terms(estimate, moments, *_by_episode(log, head, roles))
    single = "" if roles.frequency else deciding_row(estimate, moments, head)
    cut = "" if log.is_residual else cut_off(head, roles.outputs)
    texts = (own.warning if own else "", far, *in_data, cut, single)
    return log.notes + tuple(text for text in texts if text), omitted


def dependent_rows(log: Log, estimate: Estimate, moments: Moments, errors: Resolved) -> str:
    """Say that rows with one value of an unnamed column are alike, or nothing."""
    if errors.requested.kind != "auto" or errors.warning or log.is_residual:
        return ""
    others = unnamed_columns(log.table, log.roles)
    return alike_within(estimate, moments, log, errors, others)


def _by_episode(log: Log, head: Batch, roles: Roles) -> tuple[Batch, Roles]:
    """Return the first rows with those of an episode one after another, where steps are known.

    Where states are the outputs of the row before, the roles are as of a log that derives these.
    """
    if head.episode is None or head.step is None or roles.episode is None:
        return head, roles
    lags = None if roles.derived else own_lags(head, head.episode, roles)
    if lags is not None and lags.in_order:
        roles = replace(roles, next_state=())
    return head if log.ordered else head.chosen(in_order(head, head.episode)), roles
