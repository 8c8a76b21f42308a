"""Local projections: the regression of each horizon, and the influence of each row on it.

Two passes over a log in order, whatever the number of horizons: the first adds up the moments of
all regressions; the second the influence of rows on their coefficients, by cluster, and the
products behind Anderson-Rubin sets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi.diagnostics.tails_and_quantiles import chi2_quantile
from ivvi.errors import DataError, IdentificationError
from ivvi.estimators import Estimate, Exact
from ivvi.estimators.covariance.clusters import Codes
from ivvi.estimators.covariance.meat import Meat, Piece, Runs
from ivvi.estimators.covariance.score_rows import meats_of, signed_pieces
from ivvi.estimators.covariance.scores import Scored, combined, small_sample
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.weight_covariance import MOST_JOINT
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design
from ivvi.features.feature_map import linear
from ivvi.fitting.fit import Fit
from ivvi.fitting.impulse_response.model_implied import ImpliedResponse, whole_rows, why_not_closed
from ivvi.fitting.impulse_response.result import RobustSet
from ivvi.logs import Batch, Log, Roles
from ivvi.logs.batch import Window, windows
from ivvi.moments import Moments, few_threads
from ivvi.weak_iv.confidence_sets import LINE
from ivvi.weak_iv.effect_scores import EffectScores, effect_score
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import Profile, robust_anderson_rubin

STRONG = 2.0
"""How far above the critical value a rank statistic must be for a projected set to be bounded."""


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """The response that is asked for, and the fit and the rows that answer."""

    fit: Fit
    log: Log
    errors: Resolved
    output: int
    action: str
    horizon: int
    held: bool
    as_far_as_rows_reach: bool = False  # where fewer horizons will do

    @property
    def column(self) -> int:
        """Place of the action among the actions."""
        return self.fit.roles.action.index(self.action)

    def projections(self) -> list[Projection]:
        """Return the regression of each horizon."""
        roles = self.fit.roles
        return [Projection.of(roles, self.output, h, held=self.held) for h in range(self.horizon)]

    def implied(self) -> tuple[ImpliedResponse | None, str]:
        """Return what the fitted dynamics imply, or why they do not."""
        fit = self.fit
        if reason := why_not_closed(fit.roles):
            return None, reason
        return ImpliedResponse.of(
            *(fit.estimate, fit.moments, fit.roles, (self.output, self.column), self.horizon),
            held=self.held,
        ), ""


@dataclass(frozen=True, slots=True)
class Projection:
    """The regression of one horizon: its design, and how its rows are made."""

    design: Design
    output: int
    ahead: int
    steps: int

    @classmethod
    def of(cls, roles: Roles, output: int, ahead: int, *, held: bool) -> Projection:
        """Lay out the regression `ahead` steps on; actions in between are regressors if `held`."""
        steps = ahead + 1 if held else 1

        def along(names: tuple[str, ...]) -> tuple[str, ...]:
            return names + tuple(f"{name} (+{j})" for j in range(1, steps) for name in names)

        laid_out = Roles(
            state=roles.state,
            action=along(roles.action),
            instrument=along(roles.instrument),
            next_state=(roles.outputs[output],),
            reward=None,
            episode=roles.episode,
            step=roles.step,
            weight=roles.weight,
        )
        return cls(Design.build(linear(), linear(), laid_out), output, ahead, steps)

    def rows(self, window: Window) -> tuple[Ints, Batch]:
        """Return which rows of a window have enough later steps, and the regression's rows."""
        at, batch = window.followed(self.ahead), window.batch
        a, z = (
            np.hstack([values[at + j] for j in range(self.steps)]) for values in (batch.a, batch.z)
        )
        weight = None if batch.weight is None else batch.weight[at]
        y = batch.y[at + self.ahead][:, [self.output]]
        return at, Batch(batch.x[at], a, z, y, weight)


def first_pass(spec: ResponseSpec, projections: list[Projection]) -> tuple[list[Moments], float]:
    """Return the moments of each horizon, and how much of an instrument its last value explains.

    Where fewer horizons will do, those that twice as many rows reach as there are coefficients.
    """
    sums = [Moments.empty(projection.design) for projection in projections]
    longest, roles = 0, spec.fit.roles
    repeated = replace(roles, action=roles.instrument, next_state=roles.instrument, reward=None)
    lag = Design.build(linear(), linear(), replace(repeated, terminal=()))
    memory = Moments.empty(lag)
    with few_threads(projections[-1].design.width):
        passed = spec.log.batches(episodes=True)
        for window in windows(passed, spec.horizon):
            for h, projection in enumerate(projections):
                at, batch = projection.rows(window)
                if len(at):
                    sums[h] = sums[h] + Moments.of_batch(projection.design, batch)
                    longest = max(longest, h + 1)
            at, batch = window.followed(1), window.batch
            if len(at):
                z = batch.z[at]
                pair = Batch(batch.x[at], z, z, batch.z[at + 1])
                memory = memory + Moments.of_batch(lag, pair)
    if spec.as_far_as_rows_reach:
        enough = [moments.n >= 2 * len(moments.design.phi_names) for moments in sums]
        sums = sums[: max(1, longest if all(enough[:longest]) else enough.index(False))]
    elif longest < spec.horizon:
        raise DataError(
            f"the horizon is {spec.horizon}, and the longest stretch of consecutive steps in "
            f"{spec.log.label} has {longest} transitions; expected a horizon of at most {longest}"
        )
    return sums, _memory(memory, len(roles.state))


def _memory(moments: Moments, d_x: int) -> float:
    """Return the largest share of z' that z explains given the state."""
    if moments.n <= moments.design.width:
        return 0.0
    scatter, y = moments.scatter, list(moments.design.y_columns)
    x, slopes = list(range(1, 1 + d_x)), list(range(1, len(moments.design.phi_names)))

    def left(controls: list[int]) -> Floats:
        inverse = np.linalg.pinv(scatter[np.ix_(controls, controls)], hermitian=True)
        cross = scatter[np.ix_(y, controls)]
        rest: Floats = np.diag(scatter[np.ix_(y, y)] - cross @ inverse @ cross.T)
        return rest

    before, after = left(x), left(slopes)
    shares = 1 - after[before > 0] / before[before > 0]
    return float(shares.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class SolvedProjection:
    """One horizon, solved: its estimate and, for a robust set, the reduced problem."""

    projection: Projection
    moments: Moments
    estimate: Estimate
    effect: PartialledEffect
    at: int

    @classmethod
    def of(cls, projection: Projection, moments: Moments, spec: ResponseSpec) -> SolvedProjection:
        """Solve a horizon; refuse one that the instruments do not identify."""
        h = projection.ahead
        if moments.n <= len(moments.design.phi_names):
            raise DataError(
                f"{moments.n} rows reach horizon {h}, too few for "
                f"{len(moments.design.phi_names)} coefficients; expected a shorter horizon"
            )
        solved = Exact().solve(moments)
        at = moments.design.phi_names.index(spec.action)
        if solved.is_free(np.eye(len(moments.design.phi_names))[[at]]).any():
            raise IdentificationError(
                f"at horizon {h} the instruments cannot separate this action from later ones: they "
                "do not change from step to step, or are fewer than the actions; let later "
                "actions follow the state instead (later='follow', --later follow)"
            )
        name = moments.design.outputs[0]
        return cls(projection, moments, solved, PartialledEffect.of(moments, name, spec.action), at)

    @property
    def coefficient(self) -> float:
        """The response."""
        return float(self.estimate.W[0, self.at])

    @property
    def strength(self) -> float:
        """The rank statistic of the first stages by instrument: Cragg and Donald's F."""
        return _rank_statistic(self.effect) / max(self.effect.k, 1)

    @property
    def width(self) -> int:
        """Number of products behind a robust set."""
        return self.effect.k * (2 + self.effect.nuisance)

    def influence(self, v: Floats, weight: Floats | None) -> Floats:
        """Return how far each row moves the response, (n,), from v (n, p)."""
        space = whiten(self.moments)
        residual = v @ self.estimate.residual_map[0]
        pull = (v - space.shift) @ (space.to_white @ self.estimate.influence[self.at])
        moved: Floats = residual * pull / self.moments.weight
        return moved if weight is None else moved * weight

    def products(self, v: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        """Return the columns and the instruments of a robust set, (t, n) and (k, n)."""
        score = effect_score(self.effect, self.moments)
        columns, instruments = score.R @ v.T, ((v - score.space.shift) @ score.space.to_white).T
        return (columns if weight is None else columns * weight), instruments


def second_pass(
    spec: ResponseSpec,
    regressions: list[SolvedProjection],
    implied: ImpliedResponse | None,
    level: float,
) -> tuple[Floats, tuple[RobustSet, ...], int | None]:
    """Return the covariance of all responses (2 H, 2 H), robust sets, and the fewest clusters."""
    H, errors, roles = spec.horizon, spec.errors, spec.log.roles
    make = partial(meats_of, errors=errors, ordered=spec.log.ordered, roles=roles)
    joint = make([slice(0, 2 * H)])
    sets = [
        make([slice(0, 2 + regression.effect.nuisance)]) if regression.width <= MOST_JOINT else None
        for regression in regressions
    ]
    codes = Codes(errors, roles)
    with few_threads(regressions[-1].moments.design.width):
        for window in windows(spec.log.batches(episodes=True), H):
            numbers, moved = codes.of(window.rows), np.zeros((2 * H, window.count))
            for h, regression in enumerate(regressions):
                at, batch = regression.projection.rows(window)
                if not len(at):
                    continue
                v = whole_rows(regression.moments.design, batch)
                moved[h, at] = regression.influence(v, batch.weight)
                if (meats := sets[h]) is not None:
                    columns, instruments = regression.products(v, batch.weight)
                    _add(meats, columns, instruments, [code[at] for code in numbers])
            if implied is not None:
                moved[H:] = implied.influence(window.rows)
            _add(joint, moved, np.ones((1, window.count)), numbers)
    pieces = signed_pieces(joint)
    counts = [piece.clusters for piece in pieces if piece.clusters is not None]
    for column, count in zip(errors.clusters, counts, strict=False):
        errors.check_count(column, count)
    robust = tuple(
        _robust_set(regression, meats, errors, level)
        for regression, meats in zip(regressions, sets, strict=True)
    )
    covariance = _covariance(pieces, spec, regressions)
    return covariance, robust, min(counts, default=None)


def _add(meats: list[Meat], resid: Floats, white: Floats, codes: list[Ints]) -> None:
    for meat, code in zip(meats, codes, strict=True):
        meat.add(resid, white, Runs(code))


def _covariance(
    pieces: tuple[Piece, ...], spec: ResponseSpec, regressions: list[SolvedProjection]
) -> Floats:
    """Add up the pieces, corrected for small samples as the fit's own standard errors are."""
    fit, H, errors = spec.fit, spec.horizon, spec.errors
    n = np.array(
        [regression.moments.n for regression in regressions] + [fit.moments.n] * H, dtype=np.float64
    )
    d = np.array(
        [regression.estimate.W.shape[1] for regression in regressions] + [fit.W.shape[1]] * H
    )
    roots = [
        np.sqrt(small_sample(piece.clusters, n, d if errors.debiased else None)) * np.ones(2 * H)
        for piece in pieces
    ]
    factors = [np.outer(root, root) for root in roots]
    total = combined(pieces, 0, factors, guarded=errors.guarded, inflation=errors.inflation)
    return _anchored(total, spec) if errors.guarded and len(pieces) > 1 else total


def _anchored(covariance: Floats, spec: ResponseSpec) -> Floats:
    """Replace the variance at h = 0, where both responses are the fit's coefficient, by the fit's.

    What several clusterings add is cut at zero in the coordinates of the sums. The coordinates of
    responses are others, in which up to a percent of the standard error can be missing.
    """
    at = spec.fit.estimate.design.phi_names.index(spec.action)
    own = float(spec.fit.se[spec.output, at])
    unit = np.ones(len(covariance))
    if covariance[0, 0] > 0 and own > 0:
        unit[[0, spec.horizon]] = own / np.sqrt(covariance[0, 0])
    anchored: Floats = covariance * np.outer(unit, unit)
    return anchored


def _robust_set(
    regression: SolvedProjection, meats: list[Meat] | None, errors: Resolved, level: float
) -> RobustSet:
    """Return the Anderson-Rubin set of one horizon; other endogenous features are projected out."""
    if meats is None:
        return RobustSet(
            reason=f"not made of {regression.width:,} products (at most {MOST_JOINT:,})"
        )
    effect, moments = regression.effect, regression.moments
    t, n = 2 + effect.nuisance, moments.n
    scored = Scored(
        *(signed_pieces(meats), t, effect.k, n, moments.weight, errors.guarded),
        inflation=errors.inflation,
    )
    try:
        scores = EffectScores.of_scored(scored, errors, moments, effect)
        if not effect.nuisance:
            robust = robust_anderson_rubin(effect, scores, level, se=errors.kind)
            return RobustSet(robust.intervals)
        q = chi2_quantile(level, effect.k)
        if min(_rank_statistic(effect), scores.clusters) < STRONG * q:
            return RobustSet(LINE)  # not bounded for sure
        profile = Profile.of(scores)
    except (DataError, np.linalg.LinAlgError) as error:
        return RobustSet(reason=f"they cannot be computed: {error}")
    if profile is None:
        return RobustSet(reason="the covariance of the moments is not positive definite")
    if profile.least > q:
        return RobustSet(())
    low, high = (effect.unit * profile.intervals([0], np.array([q]))[0]).tolist()
    return RobustSet(LINE if np.isnan(low + high) else ((low, high),))


def _rank_statistic(effect: PartialledEffect) -> float:
    """Return the rank statistic of the first stages, homoskedastic: its least root times n."""
    explained, unexplained = effect.explained[1:, 1:], effect.unexplained[1:, 1:]
    try:
        root = np.linalg.inv(np.linalg.cholesky(unexplained))
    except np.linalg.LinAlgError:
        return np.inf
    return float(effect.freedom * np.linalg.eigvalsh(root @ explained @ root.T)[0])
