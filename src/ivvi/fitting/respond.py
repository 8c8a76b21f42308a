"""`respond`: how long an effect lasts, by local projections with the instrument (LP-IV).

For h = 0, ..., H - 1 the output of row t + h is regressed on the action of row t by two-stage
least squares, given the state of row t (Jorda, 2005; Stock and Watson, 2018). Actions in between
answer to the state, so that a response needs a word on them:

    held     the actions of rows t + 1, ..., t + h are regressors too, instrumented by the
             instruments of their own rows. With x' = M x + N a + e the coefficient is M^h N:
             powers of W, whatever rule the log's actions follow.
    follow   they are left alone. With actions a = G x + (what z and e add) the coefficient is
             (M + N G)^h N, if z is drawn anew at every step.

Standard errors, bands and the test that the fitted dynamics imply the same all come from one
joint covariance of the 2 H numbers: each row's influence on each of them, added up by cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi.diagnostics.distributions import check_level, chi2_quantile, two_sided
from ivvi.diagnostics.statistic import SingularError, Statistic, quadratic
from ivvi.errors import DataError, IdentificationError, InputError, hint
from ivvi.estimators import Estimate, Exact, StandardErrors
from ivvi.estimators.covariance.clusters import Codes
from ivvi.estimators.covariance.covariance import MOST_JOINT
from ivvi.estimators.covariance.meat import (
    ClusterMeat,
    Group,
    HacMeat,
    Meat,
    Piece,
    RowMeat,
    kernel_weights,
)
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors import Resolved, check_clusters
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design, Floats
from ivvi.features.feature_map import linear
from ivvi.fitting.estimating import estimate
from ivvi.fitting.fit import Fit
from ivvi.fitting.implied_response import ImpliedResponse, whole_rows, why_not_closed
from ivvi.fitting.response import LATER, Implied, Response, RobustSet
from ivvi.logs import Batch, Log, Roles, read_logs
from ivvi.logs.leads import Window, windows
from ivvi.moments import Moments, few_threads
from ivvi.moments.welford import Ints
from ivvi.weak_iv.confidence_sets import LINE
from ivvi.weak_iv.effect_scores import EffectScores, effect_score
from ivvi.weak_iv.partialled_effect import Effect
from ivvi.weak_iv.profiled_sets import Profile
from ivvi.weak_iv.robust_anderson_rubin import robust_anderson_rubin

KINDS = ("auto", "robust", "clustered", "hac")
DRAWS = 10_000
STRONG = 2.0
"""How far above the critical value a rank statistic is where a projected set is surely bounded."""
MEMORY = 0.05
"""Share of an instrument's variance that its last value may explain before it is told."""
NULL = "the fitted dynamics imply the responses at all horizons after the first"


def respond(  # noqa: PLR0913
    log: Any,
    action: str,
    output: str | None = None,
    horizon: int = 8,
    *,
    later: str = "held",
    level: float = 0.95,
    se: StandardErrors | str = "auto",
    cluster: str | tuple[str, ...] = (),
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Response:
    """Return the response of an output to an action, step by step, and test the model by it.

    Parameters
    ----------
    log
        A `Log`, or anything that `read_logs` opens.
    action
        The action that is moved by one unit at one step.
    output
        What responds: by default the reward where it is learned, else the first output. A state's
        name stands for its next value.
    horizon
        Number of horizons, h = 0, ..., horizon - 1.
    later
        ``held``: the actions of later steps stay as they are; their instruments must not have been
        moved by the noise of earlier steps. ``follow``: they answer to the state as in the log.
    level
        Probability of intervals and bands.
    se, cluster
        Standard errors, and the columns to cluster by: ``auto``, as `fit` decides, ``clustered``,
        ``hac`` or ``robust``. Those of HAC reach over as many steps as there are horizons, at
        least.
    seed
        Seed of the draws behind the band for all horizons.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=60, horizon=60, seed=1)
    >>> found = ivvi.respond(log, "a0", horizon=4)
    >>> bool(abs(found.estimate[1] - -0.25) < 3 * found.se[1])     # 0.5 times -0.5
    True
    """
    check_level(level)
    opened = log if isinstance(log, Log) else read_logs(log)
    _check(opened.roles, action, horizon, later)
    wanted = _wanted(se, cluster)
    fit = estimate(opened, se=wanted)
    errors = fit.errors
    if errors.kind == "hac":
        errors = replace(errors, bandwidth=max(errors.bandwidth, horizon))
    rows = errors.prepared(opened).in_order()
    asked = _Question(fit, rows, errors, _output(fit, output), action, horizon, later == "held")
    return _answer(asked, level, seed, progress)


def _check(roles: Roles, action: str, horizon: int, later: str) -> None:
    """Refuse what cannot be asked of a log with these columns."""
    if action not in roles.action:
        raise InputError(f"there is no action {action!r}{hint(action, roles.action)}")
    if later not in LATER:
        raise InputError(f"later actions are {later!r}{hint(later, LATER)}")
    if horizon < 1:
        raise InputError(f"the horizon is {horizon}; expected 1 or more")
    for name in ("episode", "step"):
        if getattr(roles, name) is None:
            raise InputError(f"a response needs steps of episodes: the log has no {name} column")


def _wanted(se: StandardErrors | str, cluster: str | tuple[str, ...]) -> StandardErrors:
    wanted = StandardErrors(se, cluster) if isinstance(se, str) else se
    if wanted.kind not in KINDS:
        raise InputError(
            f"{wanted.kind} standard errors do not know of rows that overlap, as those of a "
            f"response do; {', '.join(KINDS)} are known"
        )
    return wanted


def _output(fit: Fit, output: str | None) -> int:
    """Return the output that is asked about."""
    outputs = fit.roles.outputs
    if output is None:
        return len(outputs) - 1 if fit.roles.reward is not None else 0
    return fit.estimate.design.output(output)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, of which fit and which rows."""

    fit: Fit
    log: Log
    errors: Resolved
    output: int
    action: str
    horizon: int
    held: bool

    @property
    def column(self) -> int:
        """Place of the action among the actions."""
        return self.fit.roles.action.index(self.action)

    def projections(self) -> list[_Projection]:
        """Return the regression of each horizon."""
        roles = self.fit.roles
        return [_Projection.of(roles, self.output, h, held=self.held) for h in range(self.horizon)]

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
class _Projection:
    """The regression of one horizon: its design, and how its rows are made."""

    design: Design
    output: int
    ahead: int
    steps: int

    @classmethod
    def of(cls, roles: Roles, output: int, ahead: int, *, held: bool) -> _Projection:
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
        """Return the rows of a window that reach so far, and the regression's own."""
        at, batch = window.followed(self.ahead), window.batch
        a, z = (
            np.hstack([values[at + j] for j in range(self.steps)]) for values in (batch.a, batch.z)
        )
        weight = None if batch.weight is None else batch.weight[at]
        y = batch.y[at + self.ahead][:, [self.output]]
        return at, Batch(batch.x[at], a, z, y, weight)


def _answer(
    asked: _Question, level: float, seed: int, progress: Callable[[int], None] | None
) -> Response:
    projections = asked.projections()
    sums, memory = _first_pass(asked, projections, progress)
    regressions = [
        _Regression.of(one, moments, asked) for one, moments in zip(projections, sums, strict=True)
    ]
    implied, reason = asked.implied()
    covariance, robust, clusters = _second_pass(asked, regressions, implied, level)
    found = _Joint(
        np.array([one.coefficient for one in regressions]),
        None if implied is None else implied.value,
        covariance,
        _freedom(asked),
        clusters,
    )
    test = reason or found.agreement()
    W_cov = replace(asked.fit.estimate.W_cov, effective=None, bandwidth=asked.errors.bandwidth)
    return Response(
        action=asked.action,
        output=asked.fit.roles.outputs[asked.output],
        later="held" if asked.held else "follow",
        **found.bands(level, seed),
        robust=robust,
        rows=tuple(one.moments.n for one in regressions),
        implied=found.of_model(level),
        agreement=None if isinstance(test, str) else test,
        reason=test if isinstance(test, str) else "",
        level=level,
        errors=str(W_cov),
        label=asked.fit.label,
        notes=_notes(asked, memory),
    )


def _freedom(asked: _Question) -> float | None:
    """Return the degrees of freedom of the fit's own coefficient, which is that of h = 0."""
    freedoms = asked.fit.estimate.freedoms
    if freedoms is None:
        return None
    at = asked.fit.estimate.design.phi_names.index(asked.action)
    return float(freedoms[asked.output, at])


def _notes(asked: _Question, memory: float) -> tuple[str, ...]:
    notes = list(asked.fit.warnings)
    if not asked.held and memory > MEMORY:
        notes.append(
            f"the instrument goes with its next value ({memory:.0%} of its variance given the "
            "state): the response is to a push that goes on, and the model's is not"
        )
    if asked.fit.roles.terminal is not None:
        notes.append("the response at h is that of episodes that go on for h steps")
    return tuple(notes)


def _first_pass(
    asked: _Question, projections: list[_Projection], progress: Callable[[int], None] | None
) -> tuple[list[Moments], float]:
    """Return the moments of each horizon, and how much of an instrument its last value explains."""
    sums = [Moments.empty(one.design) for one in projections]
    longest, roles = 0, asked.fit.roles
    repeated = replace(roles, action=roles.instrument, next_state=roles.instrument, reward=None)
    lag = Design.build(linear(), linear(), replace(repeated, terminal=None))
    memory = Moments.empty(lag)
    with few_threads(projections[-1].design.width):
        for window in windows(asked.log, asked.horizon, progress):
            for h, one in enumerate(projections):
                at, batch = one.rows(window)
                if len(at):
                    sums[h] = sums[h] + Moments.of_batch(one.design, batch)
                    longest = max(longest, h + 1)
            at, batch = window.followed(1), window.batch
            if len(at):
                z = batch.z[at]
                pair = Batch(batch.x[at], z, z, batch.z[at + 1])
                memory = memory + Moments.of_batch(lag, pair)
    if longest < asked.horizon:
        raise DataError(
            f"the horizon is {asked.horizon}, and the longest stretch of consecutive steps in "
            f"{asked.log.label} has {longest} transitions; expected a horizon of at most {longest}"
        )
    return sums, _memory(memory, len(roles.state))


def _memory(moments: Moments, d_x: int) -> float:
    """Return the largest share of z' that z explains given the state."""
    if moments.n <= moments.design.width:
        return 0.0
    scatter, y = moments.scatter, list(moments.design.y_columns)
    x, both = list(range(1, 1 + d_x)), list(range(1, len(moments.design.phi_names)))

    def left(given: list[int]) -> Floats:
        inverse = np.linalg.pinv(scatter[np.ix_(given, given)], hermitian=True)
        cross = scatter[np.ix_(y, given)]
        rest: Floats = np.diag(scatter[np.ix_(y, y)] - cross @ inverse @ cross.T)
        return rest

    before, after = left(x), left(both)
    shares = 1 - after[before > 0] / before[before > 0]
    return float(shares.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class _Regression:
    """One horizon, solved: its estimate and, for a robust set, the reduced problem."""

    projection: _Projection
    moments: Moments
    estimate: Estimate
    effect: Effect
    at: int

    @classmethod
    def of(cls, projection: _Projection, moments: Moments, asked: _Question) -> _Regression:
        """Solve a horizon; refuse one that the instruments do not identify."""
        h = projection.ahead
        if moments.n <= len(moments.design.phi_names):
            raise DataError(
                f"{moments.n} rows reach horizon {h}, too few for "
                f"{len(moments.design.phi_names)} coefficients; expected a shorter horizon"
            )
        solved = Exact().solve(moments)
        at = moments.design.phi_names.index(asked.action)
        if solved.is_free(np.eye(len(moments.design.phi_names))[[at]]).any():
            raise IdentificationError(
                f"at horizon {h} the instruments do not tell the action from later ones: they do "
                "not change from step to step, or are fewer than the actions; later actions can be "
                "left to follow the state (--later follow)"
            )
        name = moments.design.outputs[0]
        return cls(projection, moments, solved, Effect.of(moments, name, asked.action), at)

    @property
    def coefficient(self) -> float:
        """The response."""
        return float(self.estimate.W[0, self.at])

    @property
    def width(self) -> int:
        """Number of products behind a robust set."""
        return self.effect.k * (2 + self.effect.nuisance)

    def influence(self, v: Floats, weight: Floats | None) -> Floats:
        """Return how far each row moves the response, (n,), from v (n, p)."""
        space = whiten(self.moments)
        residual = v @ self.estimate.residual_map[0]
        pull = (v - space.shift) @ (space.T @ self.estimate.influence[self.at])
        moved: Floats = residual * pull / self.moments.weight
        return moved if weight is None else moved * weight

    def products(self, v: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        """Return the columns and the instruments of a robust set, (t, n) and (k, n)."""
        one = effect_score(self.effect, self.moments)
        columns, Z = one.R @ v.T, ((v - one.space.shift) @ one.space.T).T
        return (columns if weight is None else columns * weight), Z


def _second_pass(
    asked: _Question,
    regressions: list[_Regression],
    implied: ImpliedResponse | None,
    level: float,
) -> tuple[Floats, tuple[RobustSet, ...], int | None]:
    """Return the covariance of all responses (2 H, 2 H), robust sets, and the fewest clusters."""
    H, errors, roles = asked.horizon, asked.errors, asked.log.roles
    whole: tuple[Group, ...] = (slice(None),)
    joint = _meats(whole, errors, asked.log)
    sets = [
        _meats(whole, errors, asked.log) if one.width <= MOST_JOINT else None for one in regressions
    ]
    codes = Codes(errors, roles)
    with few_threads(regressions[-1].moments.design.width):
        for window in windows(asked.log, H):
            numbers, moved = codes.of(window.rows), np.zeros((2 * H, window.count))
            for h, one in enumerate(regressions):
                at, batch = one.projection.rows(window)
                if not len(at):
                    continue
                v = whole_rows(one.moments.design, batch)
                moved[h, at] = one.influence(v, batch.weight)
                if (meats := sets[h]) is not None:
                    columns, Z = one.products(v, batch.weight)
                    _add(meats, columns, Z, [code[at] for code in numbers])
            if implied is not None:
                moved[H:] = implied.influence(window.rows)
            _add(joint, moved, np.ones((1, window.count)), numbers)
    pieces = _pieces(joint)
    counts = [piece.clusters for piece in pieces if piece.clusters is not None]
    for column, count in zip(errors.clusters, counts, strict=False):
        check_clusters(column, count, errors.wanted)
    robust = tuple(
        _robust_set(one, meats, errors, level) for one, meats in zip(regressions, sets, strict=True)
    )
    covariance = _covariance(pieces, asked, regressions)
    return covariance, robust, min(counts, default=None)


def _meats(groups: tuple[Group, ...], errors: Resolved, log: Log) -> list[Meat]:
    """Return what adds up products by the standard errors' own clusters."""
    if errors.kind == "robust":
        return [RowMeat(groups)]
    if errors.kind == "hac":
        return [HacMeat(groups, kernel_weights(errors.wanted.kernel, errors.bandwidth))]
    together = [log.ordered and column == log.roles.episode for column in errors.clusters]
    both = [False] if len(errors.clusters) == 2 else []
    return [ClusterMeat(groups, ordered=known) for known in together + both]


def _add(meats: list[Meat], E: Floats, white: Floats, codes: list[Ints]) -> None:
    for meat, code in zip(meats, codes, strict=True):
        meat.add(E, white, code)


def _pieces(meats: list[Meat]) -> tuple[Piece, ...]:
    """Return the sums; two-way clusters are two sums less a third."""
    signs = (1.0, 1.0, -1.0)
    return tuple(replace(meat.piece(), sign=sign) for meat, sign in zip(meats, signs, strict=False))


def _covariance(
    pieces: tuple[Piece, ...], asked: _Question, regressions: list[_Regression]
) -> Floats:
    """Add up the pieces, corrected for small samples as the fit's own standard errors are."""
    fit, H = asked.fit, asked.horizon
    n = np.array([one.moments.n for one in regressions] + [fit.moments.n] * H, dtype=np.float64)
    d = np.array([one.estimate.W.shape[1] for one in regressions] + [fit.W.shape[1]] * H)

    def corrected(piece: Piece) -> Floats:
        factor = np.ones(2 * H)
        if asked.errors.debiased:
            factor = n / (n - d)
            if piece.clusters is not None:
                factor = piece.clusters / (piece.clusters - 1) * (n - 1) / (n - d)
        root = np.sqrt(factor)
        scaled: Floats = piece.sign * piece.groups[0] * np.outer(root, root)
        return scaled

    parts = [corrected(piece) for piece in pieces]
    total: Floats = np.sum(parts, axis=0)
    if len(parts) == 3 and np.linalg.eigvalsh(total)[0] < -1e-9 * np.abs(total).max():
        total = parts[0] + parts[1]  # which errs on the safe side
    return total


def _robust_set(
    one: _Regression, meats: list[Meat] | None, errors: Resolved, level: float
) -> RobustSet:
    """Return the Anderson-Rubin set of one horizon; other endogenous features are projected out."""
    if meats is None:
        return RobustSet(reason=f"not made of {one.width:,} products (at most {MOST_JOINT:,})")
    effect, moments = one.effect, one.moments
    t, n = 2 + effect.nuisance, moments.n
    scored = Scored(_pieces(meats), t, effect.k, n, moments.weight, not errors.wanted.columns)
    try:
        scores = EffectScores.of_scored(scored, errors, moments, effect)
        if not effect.nuisance:
            found = robust_anderson_rubin(effect, scores, level, se=errors.kind)
            return RobustSet(found.intervals)
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
    ends = profile.interval(q)
    if ends is None:
        return RobustSet(LINE)
    return RobustSet(((ends[0] * effect.unit, ends[1] * effect.unit),))


def _rank_statistic(effect: Effect) -> float:
    """Return the rank statistic of the first stages, homoskedastic: its least root times n."""
    P, M = effect.explained[1:, 1:], effect.unexplained[1:, 1:]
    try:
        root = np.linalg.inv(np.linalg.cholesky(M))
    except np.linalg.LinAlgError:
        return np.inf
    return float(effect.freedom * np.linalg.eigvalsh(root @ P @ root.T)[0])


@dataclass(frozen=True, slots=True)
class _Joint:
    """Responses by projection and by the model, (H,) each, and their covariance (2 H, 2 H)."""

    projected: Floats
    implied: Floats | None
    covariance: Floats
    freedom: float | None
    clusters: int | None

    @property
    def _se(self) -> Floats:
        se: Floats = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return se

    def bands(self, level: float, seed: int) -> dict[str, Any]:
        """Return estimate, se, the intervals of single horizons and the band of all."""
        H = len(self.projected)
        value, se = self.projected, self._se[:H]
        each = two_sided(self.freedom, level)
        every = max(each, _sup_t(self.covariance[:H, :H], self.freedom, level, seed))
        return {
            "estimate": value,
            "se": se,
            "low": value - each * se,
            "high": value + each * se,
            "lower": value - every * se,
            "upper": value + every * se,
        }

    def of_model(self, level: float) -> Implied | None:
        """Return the implied response with its intervals."""
        if self.implied is None:
            return None
        se, each = self._se[len(self.projected) :], two_sided(self.freedom, level)
        return Implied(self.implied, se, self.implied - each * se, self.implied + each * se)

    def agreement(self) -> Statistic | str:
        """Test that both are the same at h > 0; at h = 0 they are the same number.

        With G clusters the statistic is Hotelling's, (G - q) / (q (G - 1)) of Wald's, which is
        compared with F(q, G - q).
        """
        H = len(self.projected)
        q = H - 1
        if self.implied is None or not q:
            return "there is one horizon, at which the two are the same number"
        if self.clusters is not None and self.clusters <= q:
            return f"{self.clusters} clusters cannot test {q} horizons; expected more of them"
        contrast = np.hstack([np.eye(H), -np.eye(H)])[1:]
        gap = (self.projected - self.implied)[1:]
        try:
            value = quadratic(gap, contrast @ self.covariance @ contrast.T, "the responses")
        except SingularError as error:
            return str(error)
        if self.clusters is None:
            return Statistic(value, (q,), NULL)
        G = self.clusters
        return Statistic(value * (G - q) / (q * (G - 1)), (q, G - q), NULL)


def _sup_t(covariance: Floats, freedom: float | None, level: float, seed: int) -> float:
    """Return what the largest |t| stays below with probability `level`, by draws."""
    se = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    moving = se > 0
    if not moving.any():
        return 0.0
    values, vectors = np.linalg.eigh(covariance[np.ix_(moving, moving)])
    paths = (vectors * np.sqrt(np.maximum(values, 0.0))) / se[moving, None]
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((paths.shape[1], DRAWS))
    if freedom is not None:
        draws /= np.sqrt(rng.chisquare(freedom, DRAWS) / freedom)
    return float(np.quantile(np.abs(paths @ draws).max(axis=0), level))
