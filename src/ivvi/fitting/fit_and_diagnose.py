"""The verbs `estimate` and `diagnose`, and methods by name."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ivvi._io.checkpoint import Checkpoint
from ivvi.diagnostics import Diagnostics
from ivvi.diagnostics import diagnose as diagnose_moments
from ivvi.diagnostics.misspecification.context_autocorrelation import remembered_contexts
from ivvi.diagnostics.misspecification.data_warnings import MOST_ROWS, data_warnings
from ivvi.errors import InputError, IvviWarning
from ivvi.estimators import Method, StandardErrors
from ivvi.estimators.jackknife_iv import JackknifeIV
from ivvi.estimators.registry import make_method
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting.fit import Fit
from ivvi.fitting.fit_pipeline import FitPipeline
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.fitting.panels.panel_detection import UnnamedPanel, as_panel
from ivvi.fitting.panels.transformed_fit import fit_absorbed, fit_differences, fit_partialled
from ivvi.fitting.saved_fit import is_saved_fit, load_fit
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.evenly_spaced_rows import spread
from ivvi.logs.id_checks import level_notes
from ivvi.logs.log import Log, Progress
from ivvi.logs.opening import open_log


def estimate(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    formula: str | None = None,
    method: Method | str = "exact",
    se: StandardErrors | str = "auto",
    cluster: str | tuple[str, ...] = (),
    allow_unidentified: bool = False,
    episodes: bool = False,
    difference: bool = False,
    exogenous: Columns = (),
    absorb: Columns = (),
    half_panel: bool = False,
    controls: Columns = (),
    learner: Any = None,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    client: Any = None,
) -> Fit:
    """Estimate y = W phi(x, a) + noise from a confounded log with instruments.

    Parameters
    ----------
    logs
        A `Log` (`ivvi.read_logs`), anything that `read_logs` opens with its defaults, or a
        `Shard` of moments, which has its own features.
    phi, psi
        Feature maps of (x, a) and of (x, z), or a feature word (``linear``, ``poly2``,
        ``spline:5``, ``fourier:200``). Without `psi`, the one that goes with the word.
    formula
        In their place, and in that of the log's columns: a formula such as
        ``next_x ~ x + C(ward) + x:age | id + year | dose ~ doctor``
        (`ivvi.logs.columns.formula`), whose middle part is absorbed. Episodes and weights of a
        `Log` are kept.
    method
        `Exact`, `SGDA`, `LeastSquares`, `LIML`, `Fuller`, `KClass`, `GMM`, or their words.
    se
        `StandardErrors`, or their kind: ``unadjusted``, ``robust``, ``clustered``, ``cr2``,
        ``wild``, ``hac``, or ``auto``, which clusters by episode if episodes have more than
        one step, and by step too where episodes share an instrument.
    cluster
        Up to three columns to cluster by.
    allow_unidentified
        Return the minimum-norm solution when the instruments do not identify W.
    episodes
        Keep per-episode moments (of the clusters, where the errors are clustered by another
        column): clustering then needs no second pass, and the bootstrap none at all.
    difference
        Estimate from differences between the steps of an episode, in which a confounder that
        lasts the whole episode drops out (`ivvi.fitting.panels.differences` says what must hold).
    exogenous
        With `difference`, states that no noise of any step moves, such as dummies for the
        years: their own differences instrument them.
    absorb
        Columns whose fixed effects are absorbed, such as ``"id"`` or ``"id,year"``: each value
        of each has a constant of its own.
    half_panel
        With `absorb`, take Nickell's bias out of the slopes by the half-panel jackknife.
    controls, learner, folds
        Columns whose influence may have any form: a learner predicts all other columns from them,
        and the predictions are subtracted first. `folds` is the number of cross-fitting folds, made
        of whole clusters (`docs/panels.md`). The learner is
        ``auto`` (the default, of `ivvi.fitting.panels.nuisance_learners`), ``lasso``, ``forest``,
        ``module:object`` or a scikit-learn regressor.
    seed
        Seed of random features, and of folds.
    progress
        Called with the number of rows just read.
    checkpoint
        Where to keep the state, so that a run that was killed goes on and ends with the
        same bits; `Checkpoint.remove` it when the result is safe.
    client
        Read the rows with Dask: a number of local processes, the address of a scheduler, or
        a `distributed.Client`.

    Returns
    -------
    Fit
        Without `moments`, `baseline` and `diagnostics` where `SGDA` uses linear memory.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=2).collect(episodes=20, horizon=100, seed=1)
    >>> fit = ivvi.estimate(log)
    >>> bool(abs(fit.W[0, 3] - -0.5) < 4 * fit.se[0, 3])     # the true effect of a0 is -0.5
    True
    """
    started = time.perf_counter()
    if formula is not None and not (phi == "linear" and psi is None):
        raise InputError("a formula defines its own features; remove phi and psi")
    if not isinstance(logs, Shard):
        logs = open_log(logs, formula).watched(progress)
        absorb = logs.absorbing(absorb)
    elif formula is not None:
        raise InputError("a formula (formula=) is only for logs; moments already have features")
    if isinstance(logs, Log) and logs.roles.frequency and (difference or checkpoint is not None):
        raise InputError(
            "frequency weights do not work with differences or checkpoints; repeat the rows "
            "in the log instead"
        )
    one_pass = checkpoint is None and client is None and not episodes
    rows = one_pass and not isinstance(logs, Shard)
    _check_transformed(
        rows=rows,
        difference=difference,
        exogenous=bool(exogenous),
        absorb=bool(absorb),
        half_panel=half_panel,
    )
    by_formula = isinstance(logs, Log) and bool(logs.roles.formula)
    alone = rows and not (difference or absorb or by_formula)
    _check_controls(controls, learner, (phi, psi), alone=alone)
    pipeline = FitPipeline(
        make_method(method) if isinstance(method, str) else method,
        StandardErrors.of(se, cluster),
        allow_unidentified=allow_unidentified,
        checkpoint=checkpoint,
        client=client,
    )
    if isinstance(logs, Shard):
        fit = pipeline.of_sums(logs)
    else:
        fit_log = partial(pipeline.of_rows, episodes=episodes)
        if difference:
            fit_log = partial(fit_differences, pipeline, exogenous=exogenous)
        elif absorb:
            alone = isinstance(pipeline.method, JackknifeIV)  # its rows are no panel
            panel = UnnamedPanel(logs) if alone else as_panel(logs, absorb)
            logs = panel.log
            how: dict[str, Any] = {"absorb": absorb, "half_panel": half_panel}
            fit_log = partial(fit_absorbed, pipeline, **how, note=panel.note)
        elif controls:
            named = "auto" if learner is None else learner
            fit_log = partial(
                fit_partialled, pipeline, controls=controls, learner=named, folds=folds
            )
        fit = fit_log(logs, phi, psi, seed=seed)
        fit = _with_doubts(fit, logs, transformed=bool(difference or absorb or controls))
        alike = level_notes(logs.table, _named_levels(logs, absorb, pipeline.errors.columns))
        fit = replace(fit, notes=fit.notes + alike) if alike else fit
    for text in fit.warnings:
        warnings.warn(text, IvviWarning, stacklevel=2)
    return replace(fit, seconds=time.perf_counter() - started)


def _with_doubts(fit: Fit, log: Log, *, transformed: bool) -> Fit:
    """Add doubts about a plan and, for a fit of transformed rows, about the rows of the log."""
    refused = fit.partialled is not None and fit.partialled.refusal
    drawn = any(not source for _, source in log.roles.carried)
    if drawn and not refused:
        rows = log.watched(None).head(episodes=True)
        contexts = remembered_contexts(rows, log.roles)
        fit = replace(fit, plan_doubts=fit.plan_doubts + contexts)
    if not transformed:
        return fit
    clusters = () if fit.inference is None else fit.errors.clusters
    known = [name for name in clusters if name in log.table.schema.names]
    read = log.clustered(known) if known else log
    head = read.watched(None).head(episodes=True)
    rows = spread(head, MOST_ROWS)
    doubts = data_warnings(log, head, rows, fit.counts, linear=fit.estimate.design.is_raw)
    return replace(fit, notes=fit.notes + doubts)


def _named_levels(log: Log, absorb: Columns, cluster: Columns) -> list[str]:
    """Name the columns to cluster by and to absorb; ids of episodes have notes already."""
    names, roles = list(log.table.schema.names), log.roles
    known = {roles.episode, *roles.episode_parts, *roles.groups}
    asked = [*match_columns(absorb, names, "absorb"), *log.clustered(cluster).roles.cluster]
    return [name for name in asked if name not in known]


def diagnose(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    formula: str | None = None,
    suspects: Sequence[str] = (),
    se: StandardErrors | str = "auto",
    cluster: str | tuple[str, ...] = (),
    absorb: Columns = (),
    seed: int = 0,
    progress: Progress | None = None,
    client: Any = None,
) -> Diagnostics:
    """Say how strong the instruments are, what they identify and whether they are valid.

    Parameters
    ----------
    logs
        A `Log`, anything that `read_logs` opens with its defaults, a `Shard`, a `Fit`, or the
        folder where one was saved.
    phi, psi, formula, se, cluster, absorb, seed, progress, client
        As for `estimate`; a `Fit` has its own.
    suspects
        Instrument features whose validity is tested, given that of the others.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> ivvi.diagnose(log).verdict.word
    'strong'
    """
    if is_saved_fit(logs):
        logs = load_fit(logs)
    if isinstance(logs, Fit):
        if cluster:
            raise InputError("clusters can be given only for a log; a fit has its own")
        fit = logs
    else:
        fit = estimate(
            logs,
            phi,
            psi,
            formula=formula,
            se=se,
            cluster=cluster,
            allow_unidentified=True,
            absorb=absorb,
            seed=seed,
            progress=progress,
            client=client,
        )
    if not suspects:
        return fit.diagnostics
    tested = diagnose_moments(fit.moments, fit.scored, suspects)
    return replace(tested, verdict=fit.diagnostics.verdict)


def _check_transformed(
    *, rows: bool, difference: bool, exogenous: bool, absorb: bool, half_panel: bool
) -> None:
    """Refuse differences and absorbed effects without all `rows` at hand, or with each other."""
    if difference and not rows:
        raise InputError(
            "differences need the rows of a log, in one process: they cannot be combined with "
            "moments, a checkpoint, Dask or per-episode moments"
        )
    if absorb and (difference or not rows):
        raise InputError(
            "absorbing effects needs the rows of a log, in one process: it cannot be combined with "
            "differences, moments, a checkpoint, Dask or per-episode moments"
        )
    if half_panel and not absorb:
        raise InputError("half_panel (--half-panel) needs absorbed effects; give absorb too")
    if exogenous and not difference:
        raise InputError(
            "exogenous states only matter with differences; give difference (--difference) too"
        )


def _check_controls(controls: Columns, learner: Any, features: Any, *, alone: bool) -> None:
    """Refuse what does not go with controls, and a learner without them."""
    if not controls:
        if learner is not None:
            raise InputError(
                "a learner is given without controls; name them (controls=, --controls)"
            )
        return
    if not alone:
        raise InputError(
            "controls are partialled out of the rows of a log, in one process: no formula, "
            "differences, absorbed effects, moments, checkpoint, cluster or per-episode moments"
        )
    if any(not isinstance(one, str | None) or one not in (None, "linear") for one in features):
        raise InputError("controls work only with linear features; remove phi and psi")


fit = estimate
"""The shell's word for `estimate`."""
