"""`update`: add the rows of another log to a saved model, whose own rows are not needed."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.errors import DataError, InputError, IvviWarning, NoNextStateError
from ivvi.estimators import GMM, StandardErrors
from ivvi.estimators.covariance.standard_errors import kept_like
from ivvi.estimators.registry import method_for_moments
from ivvi.features.design import Design
from ivvi.fitting import Fit, estimate
from ivvi.fitting.incremental.saved_moments import (
    Shard,
    check_levels,
    check_same,
    hashes,
    open_like,
)
from ivvi.logs import Log, Roles
from ivvi.logs.log import Progress
from ivvi.logs.row_sample import Sample
from ivvi.moments import Moments, compute_moments

ROUNDED, MOST_NEAR = 1e-4, 512
"""Standard deviations by which the same value may differ in two files, and rows that are compared
with each."""
FEWEST_AGAIN, DISTINCT = 5, 0.98
"""Rows that a new log must share with the model to be refused, if this share of its rows is
distinct."""


def update(
    fit: Fit | str | os.PathLike[str],
    logs: Any,
    *,
    again: bool = False,
    cluster: str | tuple[str, ...] = (),
    where: str | None = None,
    drop_missing: bool = False,
    allow_unidentified: bool = False,
    progress: Progress | None = None,
) -> Fit:
    """Return the fit to the rows of an earlier fit and those of another log together.

    Parameters
    ----------
    fit
        The earlier fit, with its moments, or the folder where it was saved.
    logs
        A `Log`, or a source that is opened with the columns of the model.
    again
        Accept a file, or rows, that are in the model already.
    cluster
        The column to cluster by; the model must hold moments by that column. By default, the
        column by which the model holds them.
    where
        Filter of the new rows, where `logs` is not a `Log`; by default the model's own.
    drop_missing, allow_unidentified, progress
        As for `read_logs` and `estimate`.

    Notes
    -----
    The method and its settings are those of the model. A model that was fitted by descent-ascent
    is updated in closed form, because its old rows are gone. Standard errors stay clustered, one
    way or two, only if the model keeps the moments of its clusters (`fit(episodes=True)`);
    otherwise they become unadjusted, with a warning. Clusters with the same name are one, and so
    are episodes with the same id, which continue from one log into the next; only the step between
    the two is lost. A model fitted from sums holds no rows of its log, and after an update it holds
    none of the new log either.
    """
    old = fit if isinstance(fit, Fit) else Fit.load(fit)
    place = "the model" if isinstance(fit, Fit) else str(fit)
    if reason := old.lacks_moments:
        raise InputError(f"nothing can be added to {place}: {reason}")
    shard = old.shard
    settings: dict[str, Any] = {"where": where, "drop_missing": drop_missing}
    log = logs if isinstance(logs, Log) else open_like(logs, shard.roles, **settings)
    log = log.watched(progress)
    design = shard.moments.design
    check_levels(shard.roles, log.roles, (place, log.label))
    check_same(design, Design.build(design.phi, design.psi, log.roles), log.label)
    files = hashes(log)
    for file, content in zip(log.table.files, files, strict=True):
        if content in shard.files and not again:
            raise DataError(
                f"{place} already contains {file} (same content); use again (--again) to add it "
                "twice"
            )
    episode = shard.roles.episode
    StandardErrors(cluster=cluster).check_kept(shard.moments, episode, place)
    try:
        if old.sample is not None and not again:
            _check_new(log, old.sample, place)
        log, what_is_kept = kept_like(shard.moments, log)
        moments, counts = compute_moments(log, design, **what_is_kept)
    except NoNextStateError as error:
        raise DataError(_without_seam(log, error)) from error
    if not again:
        _check_steps(shard.moments, moments, log, place)
    _warn_of_lost_steps(shard.moments, moments, shard.roles)
    fresh = tuple(content for content in files if content not in shard.files)
    added = Shard(moments, counts, shard.roles, fresh, log.label)
    new = estimate(
        shard + added,
        method=GMM() if old.method == "gmm" else method_for_moments(old.method, old.settings),
        se=old.errors.requested.as_kept(shard.moments, episode),
        allow_unidentified=allow_unidentified,
    )
    sample = old.sample
    if sample is not None:
        sizes = (shard.counts.transitions, counts.transitions)
        episodes = (shard.counts.episodes, counts.episodes)
        sample = sample.pooled(log.sample(), sizes, episodes)
    return replace(_with_warning(new, old), sample=sample, choice=old.choice)


def _check_new(log: Log, sample: Sample, place: str) -> None:
    """Refuse a log that repeats rows of the model: an export that holds all rows each time.

    Rows are the same where all columns agree up to what rounding to a few digits leaves.
    Instruments are left out: those that are means (``loo:``) change with the other rows.
    """
    head = log.watched(None).head()
    known, fresh = (np.column_stack([rows.x, rows.a, rows.y]) for rows in (sample, head))
    if not (len(known) and len(fresh)):
        return
    spread = known.std(axis=0)
    digits = ROUNDED * np.where(spread > 0, spread, np.maximum(abs(known[0]), 1.0))
    different = len(np.unique(_keys(np.round(fresh / digits))))
    repeated = int(_stand_in(known / digits, fresh / digits).sum())
    if repeated < FEWEST_AGAIN or different < DISTINCT * len(fresh):
        return
    raise DataError(
        f"{log.label} repeats rows that are already in {place}: {repeated:,} of the {len(known):,} "
        "rows that it keeps appear again and would be counted twice; give only the new rows"
        f"{_since(log.roles)}, refit all rows, or add them anyway with again (--again)"
    )


def _stand_in(known: Floats, fresh: Floats) -> NDArray[np.bool_]:
    """Return whether each distinct row of (m, d) is among others (n, d), up to 1 per column."""
    factors = np.random.default_rng(0).normal(size=known.shape[1])
    keys = fresh @ factors
    order = np.argsort(keys)
    known = np.unique(known, axis=0)
    reach, own = np.abs(factors).sum(), known @ factors
    first, last = (np.searchsorted(keys[order], own + d) for d in (-reach, reach))
    near = [
        bool((np.abs(fresh[order[i : min(j, i + MOST_NEAR)]] - row) <= 1).all(axis=1).any())
        for row, i, j in zip(known, first.tolist(), last.tolist(), strict=True)
    ]
    return np.array(near, dtype=bool)


def _check_steps(old: Moments, new: Moments, log: Log, place: str) -> None:
    """Refuse rows of episodes and steps that the model has, where it keeps both by name."""
    known, added, roles = old.episodes, new.episodes, log.roles
    numbered = dict(roles.asked).get("step", (roles.step,)) != (roles.step,)
    if numbered or not roles.derived or known is None or added is None or known.by:
        return
    if known.counted and added.counted:  # ids that only count may be those of others
        return
    if known.spans is None or added.spans is None or not (known.labels and added.labels):
        return
    known_spans = dict(zip(known.labels, known.spans.tolist(), strict=True))
    added_spans = zip(added.labels, added.spans.tolist(), strict=True)
    pairs = [(span, known_spans[label]) for label, span in added_spans if label in known_spans]
    again = sum(span[0] <= other[1] and other[0] <= span[1] for span, other in pairs)
    if again >= max(FEWEST_AGAIN, len(pairs) / 2):
        raise DataError(
            f"{log.label} holds {again:,} values of {roles.episode} with a {roles.step} that is "
            f"already in {place}, so their rows would be counted twice; give only the new rows"
            f"{_since(roles)}, give {roles.step} values that go on, or add them anyway with again "
            "(--again)"
        )


def _since(roles: Roles) -> str:
    """Return how to choose the new rows: with the last old row, whose next state is new."""
    step = next(iter(dict(roles.asked).get("step", ())), roles.step)
    if not (roles.derived and step and roles.episode):
        return " (such as --where \"date >= '2024-02-01'\")"
    return (
        f" with the last old row of each {roles.episode} before them (such as "
        f'--where "{step} >= LAST", with the last old {step} for LAST)'
    )


def _without_seam(log: Log, error: NoNextStateError) -> str:
    """Return the error for a log whose rows continue those of the model, but not each other."""
    if " one row long" not in str(error):  # ids or steps are wrong
        return str(error)
    return (
        f"{log.label}: no {log.roles.episode} has two consecutive rows; if these rows continue "
        f"rows of the model, give them{_since(log.roles)}: its next state is the new row"
    )


def _warn_of_lost_steps(old: Moments, new: Moments, roles: Roles) -> None:
    """Warn of episodes that continue without their last old row, where ids and steps are known."""
    known, added = old.episodes, new.episodes
    if known is None or added is None or known.spans is None or added.spans is None:
        return
    last = dict(zip(known.labels, known.spans[:, 1].tolist(), strict=False))
    starts = zip(added.labels, added.spans[:, 0].tolist(), strict=False)
    steps = [first - last[label] for label, first in starts if label in last]
    lost = sum(step > 1 for step in steps)
    if roles.derived and lost > len(steps) / 2:
        text = (
            f"{lost:,} episodes continue episodes of the model, but the step from the last old row "
            f"to the first new one is lost: give the new rows{_since(roles)}"
        )
        warnings.warn(text, IvviWarning, stacklevel=3)


def _keys(rows: Floats) -> Floats:
    """Return a number for each row (n, d), which depends on the values of that row alone."""
    factors, keys = np.random.default_rng(0).normal(size=len(rows.T)), np.zeros(len(rows))
    for factor, column in zip(factors.tolist(), rows.T, strict=True):
        keys += factor * column
    return keys


def _with_warning(fit: Fit, old: Fit) -> Fit:
    """Warn if errors cannot be clustered as in the model, which does not keep those clusters."""
    if fit.inference is None:
        return fit
    errors = fit.errors.after(tuple(dict(old.estimate.W_cov.clusters)), fit.roles)
    if errors is not fit.errors:
        warnings.warn(errors.warning, IvviWarning, stacklevel=3)
    return replace(fit, inference=replace(fit.inference, errors=errors))
