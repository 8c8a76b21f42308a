"""`interval`: the values of an effect that the log does not reject, however weak z is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ivvi.diagnostics.first_stage import partial_out
from ivvi.errors import InputError, IvviWarning, hint
from ivvi.estimators import Exact, StandardErrors
from ivvi.estimators.covariance.scores import holds_clusters
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.step_dependence import step_dependence
from ivvi.estimators.estimate import exactly_fitted
from ivvi.features.design import build_design
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting import Fit
from ivvi.fitting.fit_warnings import log_warnings
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.fitting.panels.absorbing import AbsorbedTable
from ivvi.fitting.panels.panel_detection import as_panel
from ivvi.fitting.saved_fit import is_saved_fit, load_fit
from ivvi.logs import Log
from ivvi.logs.columns.patterns import Columns
from ivvi.logs.log import Progress
from ivvi.logs.opening import open_log
from ivvi.moments import Moments, compute_moments
from ivvi.option_values import SET_ERRORS
from ivvi.weak_iv.confidence_sets import (
    ConfidenceSet,
    anderson_rubin,
    conditional_likelihood_ratio,
)
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import Combination, PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import robust_anderson_rubin
from ivvi.weak_iv.robust_likelihood_ratio import robust_likelihood_ratio

METHODS = ("ar", "clr")


def interval(  # noqa: PLR0913
    source: Any,
    output: str | None = None,
    feature: Combination | None = None,
    *,
    method: str = "ar",
    level: float = 0.95,
    se: StandardErrors | str = "auto",
    cluster: str | tuple[str, ...] = (),
    log: Log | None = None,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    formula: str | None = None,
    absorb: Columns = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> ConfidenceSet:
    """Return a confidence set for one effect that is valid however weak the instrument is.

    Parameters
    ----------
    source
        A `Fit`, the folder where one was saved, `Moments`, a `Log`, or anything that `read_logs`
        opens.
    output
        Name of an output; a state's name stands for its next value. It may be left out where
        there is one.
    feature
        Name of a feature of phi, or a mapping from names to weights (a linear combination). It
        may be left out where one is endogenous.
    method
        ``ar``, Anderson and Rubin's; ``clr``, Moreira's conditional likelihood ratio.
    level
        Probability of holding the truth.
    se
        The assumption about errors: ``unadjusted`` (homoskedastic), ``robust`` (heteroskedastic),
        ``clustered`` (dependent within clusters), ``hac`` (dependence that fades along an episode;
        `StandardErrors` gives a bandwidth). ``auto`` are those of `estimate`: of the fit itself, or
        what it would choose for the log.
    cluster
        Up to three columns to cluster by, the episode by default.
    log
        The log of a saved `Fit` or of `Moments`, for a second pass where ``robust``, ``clustered``
        or ``hac`` needs one; a `Fit` that was just made knows its own.
    phi, psi, seed
        Features, for a source that is a log.
    formula
        Replaces the log's columns and features, as for `estimate`.
    absorb
        Columns of a log whose fixed effects are absorbed, as for `estimate`; a `Fit` has its own.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> effect = ivvi.interval(log, "next_x0", "a0")
    >>> -0.5 in effect, effect.kind               # the true effect of a0 is -0.5
    (True, 'bounded')
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r} of a confidence set{hint(method, METHODS)}")
    requested = _requested_errors(se, cluster)
    doubts: tuple[str, ...] = ()
    if is_saved_fit(source):
        source = load_fit(source)
        doubts = source.notes + source.doubts
    if isinstance(source, Fit | Moments):
        if formula is not None:
            raise InputError("a formula needs a log; a fit or moments already have features")
        opened = _SetInputs.of_fit(source, log, requested, absorb)
    else:
        source = open_log(source, formula).watched(progress)
        absorb = source.absorbing(absorb)
        source = as_panel(source, absorb).log if absorb else source
        opened = _SetInputs.of(source, phi, psi, seed, requested, absorb)
        doubts = opened.warnings
    for text in doubts:
        warnings.warn(text, IvviWarning, stacklevel=2)
    effect = PartialledEffect.of(opened.moments, *_named(opened.moments, output, feature))
    errors = opened.errors
    if errors.kind == "unadjusted":
        test = anderson_rubin if method == "ar" else conditional_likelihood_ratio
        return test(effect, level)
    rows = None if opened.log is None else errors.prepared(opened.log)
    has_clusters = errors.clusters and holds_clusters(opened.moments, errors, errors.clusters[0])
    if rows is None and not has_clusters:
        raise _needs_rows()
    scores = EffectScores.of_errors(errors, opened.moments, effect, rows)
    robust = robust_anderson_rubin if method == "ar" else robust_likelihood_ratio
    confidence_set = robust(effect, scores, level, se=errors.kind)
    return replace(confidence_set, clusters=errors.clusters, note=errors.warning or errors.note)


def _named(
    moments: Moments, output: str | None, feature: Combination | None
) -> tuple[str, Combination]:
    """Return the output and feature asked for; by default the only ones."""
    if output is None:
        exact = exactly_fitted(moments, np.diag(Exact().solve(moments).noise_cov))
        noisy = zip(moments.design.outputs, exact, strict=True)
        output = _only("output", [name for name, is_exact in noisy if not is_exact])
    if feature is None:
        feature = _only("feature", list(partial_out(moments).names))
    return output, feature


def _only(what: str, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    choices = (
        f"the log has {len(names)} to choose from: {', '.join(names)}" if names else "none fits"
    )
    raise InputError(f"no {what} is named, and {choices}; name one with --{what} ({what}=)")


def _requested_errors(se: StandardErrors | str, cluster: str | tuple[str, ...]) -> StandardErrors:
    """Return the errors asked for, as the nearest kind that a confidence set supports."""
    if isinstance(se, str) and se not in SET_ERRORS:
        raise InputError(f"unknown errors {se!r} of a confidence set{hint(se, SET_ERRORS)}")
    return StandardErrors.of(se, cluster).for_set


@dataclass(frozen=True, slots=True)
class _SetInputs:
    """What a confidence set is made of: moments, standard errors and, if there is one, the log.

    `warnings` are about the rows of a log; those of a fit were given when it was made.
    """

    moments: Moments
    log: Log | None
    errors: Resolved
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_fit(
        cls, source: Fit | Moments, log: Log | None, requested: StandardErrors, absorb: Columns
    ) -> _SetInputs:
        """Take the moments of a fit, whose effects are already absorbed."""
        if absorb:
            raise InputError(
                "absorb needs a log; a fit or moments have already absorbed their effects"
            )
        if isinstance(source, Moments):
            moments, decide = source, partial(requested.for_moments, source)
        else:
            moments = source.moments
            about = source.errors, moments, source.counts, source.roles
            decide = partial(requested.for_fit, *about)
            if log is None or source.absorbed is not None or source.partialled is not None:
                log = source.log  # whose rows are without the effects, or the controls
            if log is None and _follows(requested) and source.errors.kind == "robust":
                raise _needs_rows()
        try:
            return cls(moments, log, decide(log))
        except InputError as error:
            if log is None:
                raise _needs_rows() from error
            raise

    @classmethod
    def of(
        cls,
        source: Log,
        phi: FeatureMap | str,
        psi: FeatureMap | str | None,
        seed: int,
        requested: StandardErrors,
        absorb: Columns,
    ) -> _SetInputs:
        """Read the rows of a log once."""
        requested, opened = requested.for_log(source, absorb)
        design = build_design(opened, phi, psi, seed)
        if absorb:
            table = AbsorbedTable(opened, design, absorb)
            opened = Log(table, table.roles)
            design = build_design(opened, *table.features)
        opened = opened.remembering()
        by_cluster = requested.kept(opened, asked=False)
        sums = requested.summed_by(opened)
        moments, counts = compute_moments(opened, design, **by_cluster, groups=sums)
        dependence = step_dependence(moments, opened.roles.moment, opened)
        d_phi = len(design.phi_names)
        errors = requested.resolve(opened, counts, d_phi, dependence, moments.paths)
        estimate, head = Exact().solve(moments), opened.head(episodes=True)
        if not np.isfinite(estimate.W).all():
            return cls(moments, opened, errors)
        shard = Shard(moments, counts, opened.roles, label=opened.label)
        notes, omitted, _ = log_warnings(Exact(), opened, head, shard, estimate, errors)
        return cls(moments, opened, errors, notes + tuple(omitted))


def _follows(requested: StandardErrors) -> bool:
    """Whether the errors are to be those of the fit itself."""
    return requested.kind == "auto" and not requested.columns


def _needs_rows() -> InputError:
    return InputError(
        "this set needs the rows: pass the log (log=, --log), or fit with moments by cluster "
        "(episodes=True, --keep-episodes)"
    )
