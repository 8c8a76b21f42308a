"""`respond`: how long an effect lasts, by local projections with the instrument (LP-IV).

For h = 0, ..., H - 1 the output of row t + h is regressed on the action of row t by two-stage
least squares, given the state of row t (Jorda, 2005; Stock and Watson, 2018). Actions in between
react to the state, so a response depends on what they do:

    held     the actions of rows t + 1, ..., t + h are regressors too, instrumented by the
             instruments of their own rows. With x' = M x + N a + e the coefficient is M^h N:
             powers of W, whatever rule the log's actions follow.
    follow   they are left alone. With actions a = G x + (what z and e add) the coefficient is
             (M + N G)^h N, if z is drawn anew at every step.

Standard errors, bands and the test that the fitted dynamics imply the same all come from one
joint covariance of the 2 H numbers: each row's influence on each of them, added up by cluster.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.diagnostics.statistic import SingularError, Statistic, quadratic
from ivvi.diagnostics.tails_and_quantiles import check_level, two_sided
from ivvi.errors import InputError, IvviWarning, hint
from ivvi.estimators import StandardErrors
from ivvi.fitting.fit import Fit
from ivvi.fitting.fit_and_diagnose import estimate
from ivvi.fitting.impulse_response.local_projections import (
    ResponseSpec,
    SolvedProjection,
    first_pass,
    second_pass,
)
from ivvi.fitting.impulse_response.result import LATER, Implied, Response
from ivvi.logs import Log, Roles, read_logs
from ivvi.logs.log import Progress
from ivvi.option_values import RESPONSE_ERRORS, listed

DRAWS = 10_000
USUAL_HORIZON = 8
WEAK = 10.0
"""First-stage F below which instruments are called weak."""
MEMORY = 0.05
"""Share of an instrument's variance that its last value may explain before a note says so."""
NULL = "the fitted dynamics imply the responses at all horizons after the first"


def respond(  # noqa: PLR0913
    log: Any,
    action: str,
    output: str | None = None,
    horizon: int | None = None,
    *,
    later: str = "held",
    level: float = 0.95,
    se: StandardErrors | str = "auto",
    cluster: str | tuple[str, ...] = (),
    seed: int = 0,
    progress: Progress | None = None,
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
        Number of horizons, h = 0, ..., horizon - 1: by default 8, or as many as the episodes reach.
    later
        ``held``: the actions of later steps stay as they are; their instruments must not have been
        moved by the noise of earlier steps. ``follow``: they answer to the state as in the log.
    level
        Probability of intervals and bands.
    se, cluster
        Standard errors, and the columns to cluster by: ``auto``, as `fit` decides, ``clustered``,
        ``hac`` or ``robust``. HAC errors use at least as many lags as there are horizons.
    seed
        Seed of the draws behind the band for all horizons.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=60, horizon=60, seed=1)
    >>> response = ivvi.respond(log, "a0", horizon=4)
    >>> bool(abs(response.estimate[1] - -0.25) < 3 * response.se[1])     # 0.5 times -0.5
    True
    """
    check_level(level)
    opened = (log if isinstance(log, Log) else read_logs(log)).watched(progress)
    shorter, horizon = horizon is None, USUAL_HORIZON if horizon is None else horizon
    _check(opened.roles, action, horizon, later)
    requested = _requested_errors(se, cluster)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)  # they are notes of the response
        fit = estimate(opened, se=requested)
    errors = fit.errors
    if errors.kind == "hac":
        errors = replace(errors, bandwidth=max(errors.bandwidth, horizon))
    rows = errors.prepared(opened).in_order()
    at = _output(fit, output)
    spec = ResponseSpec(fit, rows, errors, at, action, horizon, later == "held", shorter)
    return _answer(spec, level, seed)


def _check(roles: Roles, action: str, horizon: int, later: str) -> None:
    """Refuse a response that a log with these columns cannot show."""
    if not isinstance(action, str):
        raise InputError(
            f"the action is {action!r}; expected the name of one ({', '.join(roles.action)}): the "
            "number of steps is horizon="
        )
    if action not in roles.action:
        raise InputError(f"there is no action {action!r}{hint(action, roles.action)}")
    if later not in LATER:
        raise InputError(f"later actions are {later!r}{hint(later, LATER)}")
    if horizon < 1:
        raise InputError(f"the horizon is {horizon}; expected 1 or more")
    for name in ("episode", "step"):
        if getattr(roles, name) is None:
            raise InputError(f"a response needs steps of episodes: the log has no {name} column")


def _requested_errors(se: StandardErrors | str, cluster: str | tuple[str, ...]) -> StandardErrors:
    requested = StandardErrors.of(se, cluster)
    if requested.kind not in RESPONSE_ERRORS:
        raise InputError(
            f"{requested.kind} standard errors ignore that the rows of a response overlap; "
            f"expected {listed(RESPONSE_ERRORS)}"
        )
    return requested


def _output(fit: Fit, output: str | None) -> int:
    """Return the output that is asked about."""
    outputs = fit.roles.outputs
    if output is None:
        return len(outputs) - 1 if fit.roles.reward is not None else 0
    return fit.estimate.design.output(output)


def _answer(spec: ResponseSpec, level: float, seed: int) -> Response:
    projections = spec.projections()
    sums, memory = first_pass(spec, projections)
    spec = replace(spec, horizon=len(sums))
    regressions = [
        SolvedProjection.of(one, moments, spec)
        for one, moments in zip(projections, sums, strict=False)
    ]
    implied, reason = spec.implied()
    covariance, robust, clusters = second_pass(spec, regressions, implied, level)
    joint = _Joint(
        np.array([one.coefficient for one in regressions]),
        None if implied is None else implied.value,
        covariance,
        _freedom(spec),
        clusters,
    )
    push_lasts = not spec.held and memory > MEMORY
    if push_lasts:
        reason = reason or "the instrument keeps pushing, which the model's response leaves out"
    test = reason or joint.agreement()
    W_cov = replace(spec.fit.estimate.W_cov, effective=None, bandwidth=spec.errors.bandwidth)
    return Response(
        action=spec.action,
        output=spec.fit.roles.outputs[spec.output],
        later="held" if spec.held else "follow",
        **joint.bands(level, seed),
        robust=robust,
        rows=tuple(one.moments.n for one in regressions),
        implied=joint.of_model(level),
        agreement=None if isinstance(test, str) else test,
        reason=test if isinstance(test, str) else "",
        level=level,
        errors=str(W_cov),
        label=spec.fit.label,
        notes=_notes(spec, regressions, memory),
        push_lasts=push_lasts,
    )


def _freedom(spec: ResponseSpec) -> float | None:
    """Return the degrees of freedom of the fit's own coefficient, which is that of h = 0."""
    freedoms = spec.fit.estimate.freedoms
    if freedoms is None:
        return None
    at = spec.fit.estimate.design.phi_names.index(spec.action)
    return float(freedoms[spec.output, at])


def _notes(
    spec: ResponseSpec, regressions: list[SolvedProjection], memory: float
) -> tuple[str, ...]:
    """Return what to know before believing the responses."""
    notes = list(spec.fit.warnings)
    if spec.as_far_as_rows_reach and spec.horizon < USUAL_HORIZON:
        reach = regressions[-1].moments.n
        notes.append(
            f"the responses end at h = {spec.horizon - 1}, which {reach:,} rows reach: too few "
            "rows are followed by more steps of their episode"
        )
    weak = [one.projection.ahead for one in regressions if one.strength < WEAK]
    if weak:
        notes.append(
            f"the instruments are weak at h = {', '.join(map(str, weak))} (Cragg-Donald F below "
            f"{WEAK:g}): read the robust sets there"
        )
    if not spec.held and memory > MEMORY:
        notes.append(
            f"the instrument predicts its next value ({memory:.0%} of its variance given the "
            "state), so the response is to a lasting push; if the instrument changes at all, hold "
            "later actions fixed (later='held', --later held)"
        )
    if spec.fit.roles.terminal:
        notes.append("the response at h is for episodes that continue for h steps")
    if spec.fit.roles.where:
        notes.append("the response at h is for rows after which h - 1 more pass the filter")
    return tuple(notes)


@dataclass(frozen=True, slots=True, repr=False)
class _Joint(Compact):
    """Responses by projection and by the model, (H,) each, and their covariance (2 H, 2 H)."""

    projected: Floats
    implied: Floats | None
    covariance: Floats
    freedom: float | None
    clusters: int | None

    @property
    def _se(self) -> Floats:
        variance = np.diag(self.covariance)  # of few two-way clusters it may be negative
        se: Floats = np.sqrt(np.where(variance >= 0, variance, np.nan))
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
            return f"{self.clusters} clusters cannot test {q} horizons; expected more clusters"
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
