"""Fits to transformed rows: differences, absorbed effects, controls partialled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ivvi.errors import IdentificationError, InputError
from ivvi.estimators import StandardErrors
from ivvi.estimators.registry import method_for_moments, settings_of
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.features.design import Design, build_design
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting.fit import Fit
from ivvi.fitting.fit_pipeline import FitPipeline
from ivvi.fitting.fit_warnings import unnamed_doubts
from ivvi.fitting.panels.absorbing import AbsorbedTable
from ivvi.fitting.panels.controls_in_levels import ControlLevels
from ivvi.fitting.panels.differences import DifferencedTable, Levels
from ivvi.fitting.panels.nickell import (
    Nickell,
    jackknife_covariance,
    nickell_bias,
    refuse_half_panel,
    with_jackknife_errors,
    without_bias,
)
from ivvi.fitting.panels.partialling import features_of, with_unnamed, without_controls
from ivvi.fitting.panels.strict_exogeneity import related_to_other_steps
from ivvi.logs import Log, Sample
from ivvi.logs.columns.patterns import Columns
from ivvi.logs.instruments.assignment_level import few_values, unnamed_columns
from ivvi.moments import compute_moments


def fit_differences(
    pipeline: FitPipeline,
    log: Log,
    phi: FeatureMap | str,
    psi: FeatureMap | str | None,
    *,
    seed: int = 0,
    exogenous: Columns = (),
) -> Fit:
    """Fit to differences between steps; the results are in levels."""
    pipeline.errors.check_differences(log.roles.episode)
    design = build_design(log, phi, psi, seed)
    table = DifferencedTable(log, design, exogenous)
    moments, counts = compute_moments(log, design)
    levels = Levels(design, moments, counts.episodes, table.order)
    fit = _fit_differenced(pipeline, table)
    baseline, remedy = levels.restore(fit.baseline), "absorb the episodes instead"
    why = "each difference is of two rows, which cannot be clustered by that column"
    errors = fit.errors.without_usual(log.roles, why, f"{remedy} (absorb=, --absorb)")
    doubts = fit.doubts
    if (
        not log.roles.state and pipeline.method.uses_instruments
    ):  # noise moves states of later steps
        asked = (log, design, (str(log.roles.episode),), (), fit.estimate.exact)
        doubts = tuple(text for text in (related_to_other_steps(*asked),) if text) + doubts
    return replace(
        fit,
        doubts=doubts,
        estimate=levels.restore(fit.estimate),
        inference=fit.inference and replace(fit.inference, baseline=baseline, errors=errors),
        roles=log.roles,
        sample=log.sample(),
        differenced=True,
    )


def fit_absorbed(
    pipeline: FitPipeline,
    log: Log,
    phi: FeatureMap | str,
    psi: FeatureMap | str | None,
    *,
    seed: int = 0,
    absorb: Columns = (),
    half_panel: bool = False,
    note: str = "",
) -> Fit:
    """Fit to the rows less fixed effects; the results are in levels.

    `note` is what to know of automatic errors (`ivvi.fitting.panels.panel_detection`).
    """
    requested = pipeline.errors
    pipeline, log = pipeline.for_log(log, absorb)
    design = build_design(log, phi, psi, seed)
    if isinstance(pipeline.method, SGDA) and pipeline.method.is_linear(design):
        raise InputError(
            "absorbed effects need the moments of the rows, which sgda does not form in linear "
            "memory; use quadratic memory (memory=, --memory) or the method exact"
        )
    table = AbsorbedTable(log, design, absorb)
    log = log.replaced(table.source, log.roles)
    if pipeline.errors.needs_cluster_moments:
        table.check_nested(pipeline.errors.columns or (log.roles.episode,))
    rows = Log(table, table.roles)
    fit = pipeline.of_rows(rows, *table.features)
    if pipeline.errors.kind == "auto" and not fit.errors.warning:
        fit = _with_unnamed(pipeline, fit, log, design, absorb)
    fit = _noting(fit, log, requested, note)
    bias, estimate = _nickell(pipeline, log, design, absorb, table, fit), fit.estimate
    if half_panel:
        refuse_half_panel(bias, log.roles.episode)
    if bias is not None and half_panel:
        estimate = without_bias(estimate, bias.bias, fit.moments)
        method = method_for_moments(pipeline.method.name, settings_of(pipeline.method))
        whole = jackknife_covariance(log, design, absorb, table, method, bias)
        lost = table.absorbed.freedom((bias.unit,))
        estimate = with_jackknife_errors(estimate, whole, bias.unit, lost)
        bias = replace(bias, corrected=True)
    asked = (log, design, absorb, fit.errors.clusters, fit.estimate.exact)
    tested = bias is None and pipeline.method.uses_instruments
    if tested and (doubt := related_to_other_steps(*asked)):
        fit = replace(fit, doubts=(doubt, *fit.doubts))
    if bias is not None and bias.bias.size:
        bias = replace(bias, bias=table.in_levels(bias.bias))
    estimate = table.levels(estimate)
    counts = replace(table.counts, transitions=fit.counts.transitions, episodes=fit.counts.episodes)
    baseline = table.levels(fit.baseline)
    return replace(
        fit,
        estimate=estimate,
        inference=fit.inference and replace(fit.inference, baseline=baseline),
        counts=counts,
        roles=log.roles,
        sample=log.sample(),
        absorbed=table.absorbed,
        effects=table.effects_of(estimate.W),
        nickell=bias,
    )


def _noting(fit: Fit, log: Log, asked: StandardErrors, note: str) -> Fit:
    """Add notes to automatic errors: how rows were grouped, and instruments with few values.

    The instruments are those of the log itself: what effects leave of them has many.
    """
    automatic = asked.kind == "auto" and not asked.columns and len(fit.errors.clusters) < 2
    if fit.inference is None or not (note or automatic):
        return fit
    errors = fit.errors.noting(note) if asked.kind == "auto" and not asked.columns else fit.errors
    if automatic:
        errors = errors.noting(few_values(log.watched(None).head(), log.roles))
    return replace(fit, inference=replace(fit.inference, errors=errors))


def _with_unnamed(
    pipeline: FitPipeline, fit: Fit, log: Log, design: Design, absorb: Columns
) -> Fit:
    """Warn about unnamed columns that group the rows, such as the region or day."""
    others = unnamed_columns(log.table, log.roles)
    if not others or fit.inference is None:
        return fit
    try:
        wide = log.clustered(tuple(dict.fromkeys((*log.roles.cluster, *others))))
        table = AbsorbedTable(wide, design, absorb)
    except InputError:  # a column that nobody asked for need not be readable
        return fit
    rows = Log(table, replace(table.roles, cluster=log.roles.cluster))
    return _warned_of(pipeline, fit, rows, [name for name in others if name not in table.names])


def _warned_of(pipeline: FitPipeline, fit: Fit, rows: Log, others: Sequence[str]) -> Fit:
    """Warn about unnamed columns that group the transformed rows."""
    if fit.inference is None:
        return fit
    asked = (pipeline.method, rows, fit.moments, fit.estimate, fit.errors, others)
    shared, place, dependence = unnamed_doubts(*asked)
    errors, notes = replace(fit.errors, warning=dependence), (place,) if place else ()
    return replace(
        fit,
        inference=replace(fit.inference, errors=errors),
        notes=notes + fit.notes,
        doubts=tuple(shared) + fit.doubts,
    )


def fit_partialled(
    pipeline: FitPipeline,
    log: Log,
    phi: FeatureMap | str,
    psi: FeatureMap | str | None,
    *,
    seed: int = 0,
    controls: Columns = (),
    learner: Any = "auto",
    folds: int = 5,
) -> Fit:
    """Fit to the rows less what controls predict (`partialling`); features are linear."""
    pipeline, log = pipeline.for_log(log)
    by = next(iter(pipeline.errors.columns), None)
    residuals = without_controls(log, controls, learner, folds, by, seed)
    features = features_of(residuals.log.roles)
    fit = pipeline.of_rows(residuals.log, features, features)
    if pipeline.errors.kind == "auto" and not fit.errors.warning:
        fit = _warned_of(pipeline, fit, *with_unnamed(log, residuals))
    levels = ControlLevels.of(residuals, fit.W)
    baseline = ControlLevels.of(residuals, fit.baseline.W).restore(fit.baseline)
    return replace(
        fit,
        estimate=levels.restore(fit.estimate),
        inference=fit.inference and replace(fit.inference, baseline=baseline),
        counts=residuals.counts,
        roles=residuals.roles,
        sample=Sample.of(residuals.rows, residuals.roles),
        effects=levels.effects(),
        partialled=levels.partialled,
    )


def _nickell(
    pipeline: FitPipeline,
    log: Log,
    design: Design,
    absorb: Columns,
    table: AbsorbedTable,
    fit: Fit,
) -> Nickell | None:
    method = method_for_moments(pipeline.method.name, settings_of(pipeline.method))
    return nickell_bias(log, design, absorb, table, method, (fit.moments, fit.estimate))


def _fit_differenced(pipeline: FitPipeline, table: DifferencedTable) -> Fit:
    """Fit to a table of differences, around their mean unless that is one of the features."""
    log, features = Log(table, table.roles), table.features
    try:
        fit = pipeline.of_rows(log, features, features)
    except IdentificationError:
        table.check_instruments()
        alone = FeatureMap(features.blocks[1:])
        return pipeline.of_rows(log, alone, features)
    table.check_instruments()
    return fit
