"""How a fit is made, from the rows of a log or from their moments."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.checkpoint import Checkpoint
from ivvi.diagnostics import Diagnostics, Strength, diagnose, strength
from ivvi.diagnostics.misspecification.step_effects import step_patterns
from ivvi.diagnostics.reduced_form import reduced_form
from ivvi.diagnostics.strength import explain_unidentified
from ivvi.errors import IdentificationError, InputError
from ivvi.estimators import GMM, Estimate, Exact, LeastSquares, Method, StandardErrors
from ivvi.estimators.covariance.bekker import with_bekker
from ivvi.estimators.covariance.estimate_covariance import (
    counted,
    with_effective_rows,
    with_errors,
    without_rounding,
)
from ivvi.estimators.covariance.influence import with_bandwidth
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.step_dependence import step_dependence
from ivvi.estimators.jackknife_iv import JackknifeIV
from ivvi.estimators.kclass import LIML, Fuller, KClass
from ivvi.estimators.registry import settings_of
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.estimators.smooth import Smooth
from ivvi.features.design import Design, build_design
from ivvi.features.feature_map import FeatureMap, linear
from ivvi.fitting.feature_choice import choose, is_auto, restored_choice
from ivvi.fitting.fit import Fit
from ivvi.fitting.fit_warnings import log_warnings
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.fitting.inference_tables import Inference, half_widths
from ivvi.fitting.panels.differences import DifferencedTable
from ivvi.fitting.second_pass import second_pass
from ivvi.logs import Batch, Counts, Log, Roles, Sample
from ivvi.logs.columns.patterns import Columns
from ivvi.logs.data_checks import check_enough_rows
from ivvi.logs.instruments.assignment_level import few_values
from ivvi.logs.row_sample import MOST, first_rows
from ivvi.moments import Moments, compute_moments, few_threads
from ivvi.moments.compression import restrict
from ivvi.weak_iv.action_strength import holding, strength_by_action
from ivvi.weak_iv.robust_effect_intervals import RobustIntervals, robust_intervals, settled
from ivvi.weak_iv.wild_bootstrap import WildTest, wild_tests


def run_key(log: Log, design: Design, method: Method, **options: Any) -> dict[str, Any]:
    """Describe a run with JSON values; a checkpoint of another run is refused by them.

    Files are identified by path, size and time of change: reading them whole would cost as much
    as the work that a checkpoint saves.
    """
    if not log.table.files:
        raise InputError(f"a checkpoint needs a log in files; {log.label} has none")
    about = [(file.resolve(), file.stat()) for file in log.table.files]
    return {
        "files": [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in about],
        "columns": [dataclasses.asdict(log.roles), log.drop_missing],
        "features": [design.phi.to_json(), design.psi.to_json()],
        "options": [method.name, settings_of(method), options],
    }


def beside_wald(
    method: Method,
    moments: Moments,
    estimate: Estimate,
    diagnostics: Diagnostics,
    scored: Mapping[str, Scored],
) -> RobustIntervals:
    """Return the intervals that are valid with a weak instrument, or why there are none."""
    name = method.name
    if isinstance(method, LeastSquares):
        return RobustIntervals(reason="least squares does not use the instruments")
    if not method.has_robust_intervals or getattr(method, "ridge", None):
        return RobustIntervals(reason=f"the effects that {name} estimates are shrunk or mixed")
    return robust_intervals(moments, estimate, diagnostics, scored, half_widths(estimate))


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FitPipeline:
    """The settings of `estimate` that are not data.

    Attributes
    ----------
    method, errors
        How W is found, and the standard errors that are asked for.
    allow_unidentified, checkpoint, client
        As for `estimate`.
    """

    method: Method
    errors: StandardErrors
    allow_unidentified: bool = False
    checkpoint: Checkpoint | None = None
    client: Any = None

    def of_rows(
        self,
        log: Log,
        phi: FeatureMap | str,
        psi: FeatureMap | str | None,
        *,
        seed: int = 0,
        episodes: bool = False,
    ) -> Fit:
        """Fit to a log: one pass for the moments and, mostly, one for the standard errors.

        Episodes that are few and long are remembered until the standard errors are known,
        in place of the second pass.
        """
        pipeline, log = self.for_log(log)
        if pipeline.errors is not self.errors:
            return pipeline.of_rows(log, phi, psi, seed=seed, episodes=episodes)
        if is_auto(phi, psi):
            return self._of_chosen(log, episodes=episodes)
        design = build_design(log, phi, psi, seed)
        if not (isinstance(self.method, SGDA) or log.is_residual):
            check_enough_rows(log.table, log.roles, len(design.phi_names))
        if self.checkpoint is not None:
            by_episode = episodes or self.errors.needs_cluster_moments
            what_is_kept = {"episodes": by_episode, "sums": self.errors.summed_by(log)}
            self.checkpoint.open(run_key(log, design, self.method, **what_is_kept))
        if isinstance(self.method, SGDA) and self.method.is_linear(design):
            return self._without_moments(self.method, log, design)
        log = log.remembering()
        moments, counts = self._moments(log, design, episodes=episodes)
        fit = self.of_moments(Shard(moments, counts, log.roles, label=log.label), log)
        return fit if episodes else _without_episodes(fit)

    def for_log(self, log: Log, absorb: Columns = ()) -> tuple[FitPipeline, Log]:
        """Return the pipeline with the errors for a log, and the log with the columns they need."""
        alone = isinstance(self.method, JackknifeIV)  # its errors are robust
        errors, log = self.errors.for_log(log, absorb, independent=alone)
        return replace(self, errors=errors), log

    def _of_chosen(self, log: Log, *, episodes: bool) -> Fit:
        """Fit with features that the data choose, which takes one more pass."""
        chosen = choose(log, log.roles, self.method)
        pipeline = self if chosen.method is None else replace(self, method=chosen.method)
        fit = pipeline.of_rows(log, chosen.phi, chosen.psi, episodes=episodes)
        return replace(fit, choice=chosen.choice)

    def _moments(self, log: Log, design: Design, *, episodes: bool) -> tuple[Moments, Counts]:
        """Make the first pass; keep what decides the clusters and, if cheap, their moments."""
        ways = 2 if self.client is None else 1
        asked = episodes or self.errors.needs_cluster_moments
        by_cluster = self.errors.kept(log, asked=asked, ways=ways)
        groups = self.errors.summed_by(log)
        sums: tuple[Moments, Counts] = self._walk(log, design, **by_cluster, groups=groups)
        return sums

    def of_sums(self, shard: Shard) -> Fit:
        """Fit to sums; if the data chose their features, with the penalties of that choice."""
        chosen = restored_choice(shard) if self.method == Exact() else None
        if chosen is None:
            return self.of_moments(shard)
        return replace(replace(self, method=chosen[0]).of_moments(shard), choice=chosen[1])

    def of_moments(self, shard: Shard, log: Log | None = None) -> Fit:
        """Fit to moments; without their log, errors are clustered or unadjusted."""
        with few_threads(shard.moments.design.width):
            return self._of_moments(shard, log)

    def _of_moments(self, shard: Shard, log: Log | None) -> Fit:
        moments = shard.moments
        diagnosed = (
            linear_part(moments, shard.roles) if isinstance(self.method, Smooth) else moments
        )
        strong = self._checked_strength(diagnosed, shard)
        errors = self._resolved(shard, log, strong.d_phi)
        log = None if log is None else errors.prepared(log)
        if log is not None and errors.kind == "hac":
            steps, rows = moments.n / max(shard.counts.episodes, 1), log.head(episodes=True)
            errors = with_bandwidth(errors, Exact().solve(moments), moments, rows, steps)
        method = self._method_for(errors, log)
        estimates, scored = self._solved(method, shard, diagnosed, errors, log)
        head = None if log is None else log.head(episodes=True)
        if not shard.roles.frequency:
            weighed = with_effective_rows(estimates["estimate"], errors, moments, head)
            estimates = estimates | {"estimate": weighed}
        estimate, errors = estimates["estimate"], counted(errors, estimates["estimate"])
        automatic = errors.kind == "robust" and self.errors.kind == "auto"
        if head is not None and log is not None and automatic and not log.is_residual:
            errors = errors.noting(few_values(head, shard.roles))
        notes: tuple[str, ...] = ()
        omitted: dict[str, str] = {}
        if log is not None and head is not None:
            asked = (self.method, log, head, shard, estimate, errors)
            notes, omitted, errors = log_warnings(*asked)
        doubts = tuple(omitted)
        differenced = log is not None and isinstance(log.table, DifferencedTable)
        is_changed = differenced or (log is not None and log.is_residual)
        if isinstance(method, KClass) and (mixed := method.doubt(moments.n)):
            doubts = (mixed, *doubts)
        return Fit(
            estimate=estimate,
            inference=self._inferred(shard, diagnosed, estimates, scored, errors, log, head),
            counts=shard.counts,
            roles=shard.roles,
            label=shard.label,
            method=method.name,
            settings=settings_of(method),
            files=shard.files if log is None else tuple(log.table.files),
            log=None if log is None else log.watched(None),
            sample=None if head is None else Sample.of(head, shard.roles),
            notes=notes,
            doubts=doubts,
            plan_doubts=() if is_changed else step_patterns(moments, shard.roles),
            reward_doubts=tuple(text for text in omitted if omitted[text] == shard.roles.reward),
        )

    def _checked_strength(self, diagnosed: Moments, shard: Shard) -> Strength:
        """Return how strong the instruments are; refuse those that do not identify W."""
        strong = strength(diagnosed)
        logger.info(
            "%s: moments of %s transitions, %d features phi, %d psi, rank of A %d",
            *(shard.label, f"{shard.moments.n:,}", strong.d_phi, strong.d_psi, strong.rank),
        )
        is_ridge = self.method.name == "ridge" or bool(getattr(self.method, "ridge", 0.0))
        free = is_ridge or not self.method.uses_instruments
        if not (strong.identified or self.allow_unidentified or free):
            raise IdentificationError(explain_unidentified(diagnosed, strong, shard.roles))
        return strong

    def _method_for(self, errors: Resolved, log: Log | None) -> Method:
        """Return the method, weighted as the errors assume; refuse errors that are not for it."""
        method = self.method
        if isinstance(method, JackknifeIV) and errors.kind != "robust":
            raise InputError(
                f"{method.name} leaves out single rows and has only robust standard errors, not "
                f"{errors.kind} ones; ask for robust (se=, --se) if rows are independent"
            )
        if self.errors.kind == "bekker" and not isinstance(method, LIML | Fuller):
            raise InputError(
                f"bekker standard errors are only for the methods liml and fuller:1; the method is "
                f"{method.name} (ujive, ijive and jive1 already have standard errors for many "
                "instruments)"
            )
        if not isinstance(method, GMM) or method.weight is not None:
            return method
        if log is None and errors.note and errors.kind == "unadjusted":
            raise InputError(
                "gmm needs the rows of a log, or sums kept by episode (episodes=True, "
                "--by-episode or --keep-episodes); these sums are over all rows"
            )
        return replace(method, weight=errors)

    def _solved(
        self, method: Method, shard: Shard, diagnosed: Moments, errors: Resolved, log: Log | None
    ) -> tuple[dict[str, Estimate], dict[str, Scored]]:
        """Return the estimate and least squares with their errors, and the scores behind these."""
        moments = shard.moments
        solved = {
            "estimate": method.solve(moments, log, self.checkpoint),
            "baseline": LeastSquares().solve(moments),
        }
        logger.info("weights by %s; standard errors %s", method.name, errors.kind)
        scored = second_pass(
            *(solved, moments, errors, log, shard.counts, self.client),
            diagnosed=None if diagnosed is moments else diagnosed,
        )
        estimates = {
            name: without_rounding(with_errors(one, errors, scored.get(name), moments), moments)
            for name, one in solved.items()
        }
        if self.errors.kind == "bekker" and isinstance(method, LIML | Fuller):
            estimates["estimate"] = with_bekker(estimates["estimate"], moments, method.ks(moments))
        return estimates, scored

    def _inferred(
        self,
        shard: Shard,
        diagnosed: Moments,
        estimates: Mapping[str, Estimate],
        scored: dict[str, Scored],
        errors: Resolved,
        log: Log | None,
        head: Batch | None,
    ) -> Inference:
        """Judge the instruments: diagnostics, robust intervals, a verdict for each action."""
        moments, roles, estimate = shard.moments, shard.roles, estimates["estimate"]
        diagnostics = diagnose(diagnosed, scored)
        robust = beside_wald(self.method, moments, estimate, diagnostics, scored)
        wild = self._wild(moments, estimate)
        verdict = settled(diagnostics.verdict, robust, bootstrapped=bool(wild))
        if isinstance(self.method, KClass) and self.method.doubt(moments.n):
            verdict = replace(verdict, recommended="none")
        if errors.kind not in ("robust", "unadjusted"):
            verdict = replace(verdict, method="")  # a jackknife takes rows for independent
        diagnostics = replace(diagnostics, verdict=verdict)
        held_by = holding(diagnosed.design.phi, len(roles.state), len(roles.action), head)
        return Inference(
            moments,
            estimates["baseline"],
            diagnostics,
            scored,
            errors,
            robust,
            strength_by_action(
                diagnostics.first_stage, robust, diagnosed.design, roles.action, held_by
            ),
            wild,
            reduced_form(diagnosed, errors, scored.get("reduced_form")),
            _start_clusters(log, head, errors),
        )

    def _wild(self, moments: Moments, estimate: Estimate) -> dict[tuple[str, str], WildTest]:
        """Bootstrap the actions' effects if asked for; the method must be the closed form."""
        if self.errors.kind != "wild":
            return {}
        if self.method.name != "exact" or not estimate.identified:
            raise InputError(
                "the wild bootstrap supports only identified two-stage least squares, not "
                f"{self.method.name}; use the method exact, or clustered errors"
            )
        return wild_tests(moments, draws=self.errors.draws, seed=self.errors.seed)

    def _resolved(self, shard: Shard, log: Log | None, d_phi: int) -> Resolved:
        """Return the standard errors to use, with the rows or without them."""
        moments, counts = shard.moments, shard.counts
        dependence = step_dependence(moments, shard.roles.moment, log)
        if log is not None:
            errors = self.errors.resolve(log, counts, d_phi, dependence, moments.paths)
            return errors.counting_effects() if moments.absorbed else errors
        return self.errors.for_sums(moments, counts, d_phi, shard.roles, dependence)

    def _without_moments(self, method: SGDA, log: Log, design: Design) -> Fit:
        """Fit by descent-ascent with linear memory."""
        if self.client is not None:
            raise InputError("linear memory cannot use Dask: it computes no moments")
        estimate, counts = method.solve_wide(log, design, self.checkpoint)
        return Fit(
            estimate=estimate,
            inference=None,
            counts=counts,
            roles=log.roles,
            label=log.label,
            method=method.name,
            settings=settings_of(method),
            sample=log.sample(),
        )

    @property
    def _walk(self) -> Callable[..., Any]:
        """Return `compute_moments`, done in this process or by a Dask cluster."""
        if self.client is None:
            return partial(compute_moments, checkpoint=self.checkpoint)
        from ivvi.moments.dask import compute_moments_on

        if self.checkpoint is not None:
            raise InputError("checkpoints do not work with Dask; they are for one process")
        return partial(compute_moments_on, self.client)


def linear_part(moments: Moments, roles: Roles) -> Moments:
    """Return the moments of the linear terms alone, by which instruments are judged."""
    return restrict(moments, Design.build(linear(), linear(), roles))


def _start_clusters(log: Log | None, head: Batch | None, errors: Resolved) -> np.ndarray:
    """Return the clusters of the sample's first states, (s,), where they are not the episodes."""
    columns = errors.clusters
    if log is None or head is None or len(columns) != 1 or columns[0] not in log.roles.cluster:
        return np.empty(0, dtype=np.int64)
    codes = head.clusters[log.roles.cluster.index(columns[0])]
    return np.asarray(codes[first_rows(head)[:MOST]])


def _without_episodes(fit: Fit) -> Fit:
    """Return the fit without the moments of its episodes."""
    if fit.inference is None:
        return fit
    return replace(fit, inference=replace(fit.inference, moments=fit.moments.without_episodes()))
