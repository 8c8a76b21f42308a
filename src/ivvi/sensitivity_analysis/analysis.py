"""`sensitivity`: what if the instrument is not quite valid?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.tails_and_quantiles import check_level, two_sided
from ivvi.dynamics.state_encoding import state_rows
from ivvi.errors import InputError
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.evaluation.value_policy import acting, by_name, planner_of, problem_of
from ivvi.logs import Log
from ivvi.planning.problem import Planner
from ivvi.policy.plan import make_planner
from ivvi.policy.policy import Policy
from ivvi.policy.saved_policy import as_policy
from ivvi.sensitivity_analysis.adjusted_covariance import Variances, errors_of, rows_of
from ivvi.sensitivity_analysis.breakdown import (
    BAND,
    Gain,
    GainSimulator,
    Replanned,
    deviations,
    smallest_loss,
)
from ivvi.sensitivity_analysis.result import Band, Breakdown, EffectBand, Sensitivity
from ivvi.sensitivity_analysis.violations import WORST, Violation

MOST = 1e6
"""The largest direct effect, in standard deviations, and number of episodes or draws."""


def sensitivity(  # noqa: PLR0913
    policy: Any,
    model: Any,
    *,
    reward: Any = None,
    actions: Any = None,
    horizon: int | None = None,
    discount: float | None = None,
    terminal: Callable[..., Any] | None = None,
    against: Sequence[str] | Mapping[str, Any] = ("behaviour",),
    violations: Sequence[str] = ("worst",),
    states: Any = None,
    planner: Planner | str | None = None,
    starts: Any = None,
    episodes: int = 128,
    most: float = 1.0,
    level: float = 0.95,
    draws: int = 40,
    log: Log | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Sensitivity:
    """Find how invalid the instrument may be before conclusions change.

    W(t) = W - t sigma L G explains the log as well as W does. Here t is the size of a direct effect
    of z on the outputs (or of a correlation of z with the confounder), and G is its direction; see
    `ivvi.sensitivity_analysis.violations`. The gain over a rival, the recommended actions and the
    effects are computed at W(t) until they change.

    Parameters
    ----------
    policy, reward, actions, horizon, discount, terminal, starts
        As for `ivvi.value`.
    model
        A `Fit`, or the folder of a saved model that keeps its moments.
    against
        Rivals as for `ivvi.value`: ``behaviour`` (the log's own policy without the confounder's
        help), ``zero`` (does nothing), ``least-squares`` (planned in the same way in the confounded
        dynamics); or policies by name.
    violations
        Directions: ``worst``, any direct effect of the instruments on every output, in the
        direction that costs the gain most; an instrument such as ``z0``, on every output;
        ``z0:x1``, on one; with a sign, ``+z0:x1``, direct effects of that sign alone.
    states
        States (k, d_x) whose recommended action is planned again under violations.
    planner
        The planner for these; by default the one that planned the policy.
    episodes
        Simulated episodes, the same in all models.
    most
        The largest size t that is examined: a direct effect of one standard deviation of z,
        in standard deviations of the noise.
    level, draws
        Probability of the intervals, and draws of W from which the gain's standard errors
        come; none with 0.
    log
        The log, for a saved model (a `Fit` knows its own): robust, clustered or HAC standard
        errors of the effects are computed again under a direct effect in one pass over it.
        Unadjusted errors need no rows, and neither do errors clustered by episode if its moments
        were kept. All others, without the log, grow with t as unadjusted ones do.
    seed, progress
        Seed of everything random; called after each plan and each gain.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=100, seed=1)
    >>> fit = ivvi.estimate(log)
    >>> policy = ivvi.plan(fit, "quadratic:weight=0.05", (-1, 1), horizon=5, method="mpc")
    >>> result = ivvi.sensitivity(policy, fit, against=("zero",), draws=0)
    >>> 0.5 < result.breakdowns[0].size.main_share < 1.5
    True
    """
    _check(level, most, episodes, draws)
    policy, source = as_policy(policy), ValueInputs.of(model)
    settings = {"horizon": horizon, "discount": discount, "terminal": terminal}
    problem = problem_of(policy, source, reward, actions, settings)
    simulator = GainSimulator.of(source, problem, starts, episodes, seed)
    rivals = by_name(against)
    if not rivals:
        raise InputError("name at least one rival to measure the gain against, such as behaviour")
    everyone = (policy, *rivals.values())
    actor, *others = (acting(chosen, source, problem, planner_of(policy)) for chosen in everyone)
    exclusion = simulator.exclusion
    for word in violations:
        exclusion.check(word)
    variances = Variances.of(exclusion, *errors_of(source), log or rows_of(source))
    rows = np.empty((0, 0)) if states is None else state_rows(states, problem.model)
    chosen = planner_of(policy) if states is None else _planner(policy, planner)
    tick = progress or (lambda steps: None)
    critical = two_sided(level=level)
    around = deviations(exclusion.model, draws, np.random.default_rng(seed))
    breakdowns: list[Breakdown] = []
    bands: list[Band] = []
    directions: dict[str, Violation] = {}
    for rival, other in zip(rivals, others, strict=True):
        gain = Gain(simulator, actor, other)
        gradient = gain.gradient()
        for word in violations:
            violation = exclusion.along(word, gradient)
            directions.setdefault(word, violation)
            breakdown, band = _gain_lost(gain, rival, violation, most, around, critical)
            breakdowns.append(breakdown)
            bands.append(band)
            tick(1)
    for violation in directions.values():
        again = Replanned(exclusion, violation, problem, chosen, rows, progress)
        breakdowns += _flips(again, most)
    effects = [e for v in directions.values() for e in effect_bands(variances, v, critical, most)]
    notes = (variances.note,) if variances.note else ()
    return Sensitivity(tuple(breakdowns), tuple(bands), tuple(effects), level, notes)


def _check(level: float, most: float, episodes: int, draws: int) -> None:
    check_level(level)
    for name, value, least in (
        ("most", most, 0.0),
        ("episodes", episodes, 0),
        ("draws", draws, -1),
    ):
        if not least < value < math.inf:
            raise InputError(f"{name} is {value}; expected a finite number above {least}")
        if value > MOST:
            raise InputError(f"{name} is {value:g}; expected at most {MOST:g}")


def _gain_lost(
    gain: Gain,
    rival: str,
    violation: Violation,
    most: float,
    around: Floats | None,
    critical: float,
) -> tuple[Breakdown, Band]:
    """Return the sizes at which a gain is lost and at which it is unsure, and its band.

    The standard errors at all sizes come from the same draws.
    """
    lost = smallest_loss(lambda sign: lambda t: gain.at(violation, sign * t)[0], violation, most)
    unsure = None
    if around is not None:
        within = most if lost is None else abs(lost)
        unsure = (
            lost
            if lost == 0
            else smallest_loss(
                lambda sign: lambda t: gain.lower(violation, sign * t, around, critical),
                violation,
                within,
            )
        )
    reach = most if not lost else min(1.5 * abs(lost), most)
    t = np.linspace(-reach if len(violation.signs) > 1 else 0.0, reach, BAND)
    (gains, error), se = gain.at(violation, t), np.full(BAND, np.nan)
    if around is not None:
        se = np.hypot(gain.se(violation, t, around), error)
    sizes = [gain.exclusion.size(violation, v) for v in t]
    share = np.sign(t) * [s.main_share for s in sizes]
    correlation = np.sign(t) * [s.most_correlation for s in sizes]
    band = Band(rival, violation.name, t, share, correlation, gains, se, error, critical)
    limit = gain.exclusion.size(violation, most)
    gone, doubted = gain.size(violation, lost), gain.size(violation, unsure)
    has_draws = around is not None
    return Breakdown(f"gain over {rival}", violation.name, gone, doubted, limit, has_draws), band


def _flips(again: Replanned, most: float) -> list[Breakdown]:
    """Return the size at which the recommended action of each state flips."""
    exclusion, violation = again.exclusion, again.violation
    names, breakdowns = again.problem.model.action, []
    for row, x in enumerate(again.states):
        flip = again.first_flip(row, most)
        size = None if flip is None else exclusion.size(violation, flip[0])
        state = ", ".join(f"{v:.3g}" for v in x[:4]) + (", ..." if len(x) > 4 else "")
        label = "action" if flip is None else names[flip[1]]
        limit = exclusion.size(violation, most)
        breakdowns.append(Breakdown(f"{label} at ({state})", violation.name, size, None, limit))
    return breakdowns


def effect_bands(
    variances: Variances, violation: Violation, critical: float, most: float
) -> list[EffectBand]:
    """Return a band for each coefficient of a feature that is not shared with psi.

    Each coefficient has its own worst direction, which lowers it by sigma_i |L_j| at size 1.
    """
    exclusion = variances.exclusion
    design, model, L = exclusion.moments.design, exclusion.model, exclusion.influence
    bands = []
    for i in np.flatnonzero(np.linalg.norm(violation.direction, axis=1)).tolist():
        for j in sorted(set(design.phi_columns) - set(design.shared)):
            direction_of = exclusion.against(i, j) if violation.name == WORST else violation
            slope = float(exclusion.noise[i] * direction_of.direction[i] @ L[j])
            t = float(model.W[i, j]) / slope if slope else np.inf
            allowed = np.sign(t) in direction_of.signs and abs(t) <= most
            tipping = exclusion.size(direction_of, t) if allowed else None
            names = design.outputs[i], design.phi_names[j], violation.name
            numbers = float(model.W[i, j]), slope, variances.along(i, j, direction_of.direction[i])
            bands.append(EffectBand(*names, *numbers, critical, direction_of.signs, tipping))
    return bands


def _planner(policy: Any, planner: Planner | str | None) -> Planner:
    if isinstance(planner, str):
        return make_planner(planner)
    if planner is None and not isinstance(policy, Policy):
        raise InputError("planning again needs planner= if the policy is a function")
    chosen: Planner = planner or planner_of(policy)
    return chosen
