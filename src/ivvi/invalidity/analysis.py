"""`sensitivity`: what if the instrument is not quite valid?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from ivvi.diagnostics.quantiles import check_level
from ivvi.dynamics import Dynamics
from ivvi.errors import InputError
from ivvi.invalidity.flips import Replanned
from ivvi.invalidity.gains import (
    ANCHORS,
    BAND,
    Gain,
    Stage,
    deviations,
    smallest_crossing,
    smallest_loss,
)
from ivvi.invalidity.results import Band, Breakdown, EffectBand, Sensitivity
from ivvi.invalidity.violations import WORST, Exclusion, Violation
from ivvi.layout import Floats
from ivvi.planners.problem import Planner, state_rows
from ivvi.planning import make_planner
from ivvi.policy import Policy
from ivvi.valuation.evidence import Evidence
from ivvi.valuation.valuing import acting, by_name, planner_of, problem_of


def sensitivity(  # noqa: PLR0913
    policy: Any,
    source: Any,
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
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Sensitivity:
    """Find how far the instrument may be invalid before conclusions change.

    The log is explained as well by W(t) = W - t sigma L G, where t is the size of a direct
    effect of z on the outputs (or of a correlation of z with the confounder) and G its
    direction; see `ivvi.invalidity.violations`. The gain over a rival, the recommended
    actions and the effects are computed at W(t) until they change.

    Parameters
    ----------
    policy, reward, actions, horizon, discount, terminal, starts
        As for `ivvi.value`.
    source
        A `Fit`, or the folder of a saved model that keeps its moments.
    against
        Rivals as for `ivvi.value`: ``behaviour`` (the log's own policy without the confounder's
        help), ``zero`` (does nothing), ``least-squares`` (planned alike in the confounded
        dynamics); or policies by name.
    violations
        Directions: ``worst``, any direct effect of the instruments on every output, in the
        direction that costs the gain most; an instrument such as ``z0``, on every output;
        ``z0:x1``, on one; with a sign, ``+z0:x1``, direct effects of that sign alone.
    states
        States (k, d_x) whose recommended action is planned again under doubt.
    planner
        How they are planned again; by default as the policy was.
    episodes
        Simulated episodes, the same in all worlds.
    most
        The largest size t that is looked at: a direct effect of one standard deviation of z,
        in standard deviations of the noise.
    level, draws
        Probability of the intervals, and draws of W from which the gain's standard errors
        come; none with 0.
    seed, progress
        Seed of everything random; called after each plan and each gain.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=100, seed=1)
    >>> fit = ivvi.estimate(log)
    >>> policy = ivvi.plan(fit.model, "quadratic:weight=0.05", (-1, 1), horizon=20)
    >>> found = ivvi.sensitivity(policy, fit, against=("zero",), draws=0)
    >>> 0.5 < found.breakdowns[0].size.most_share < 1.5
    True
    """
    _check(level, most, episodes, draws)
    evidence = Evidence.of(source)
    asked = {"horizon": horizon, "discount": discount, "terminal": terminal}
    problem = problem_of(policy, evidence, reward, actions, asked)
    stage = Stage.of(evidence, problem, starts, episodes, seed)
    rivals = by_name(against)
    if not rivals:
        raise InputError("no rival was given; a gain is over somebody, such as behaviour")
    everyone = (policy, *rivals.values())
    own, *others = (acting(who, evidence, problem, planner_of(policy)) for who in everyone)
    exclusion = stage.exclusion
    for word in violations:
        exclusion.check(word)
    rows = np.empty((0, 0)) if states is None else state_rows(states, problem.model)
    chosen = planner_of(policy) if states is None else _planner(policy, planner)
    tick = progress or (lambda steps: None)
    critical = NormalDist().inv_cdf((1 + level) / 2)
    around = deviations(exclusion.model, draws, np.random.default_rng(seed))
    breakdowns: list[Breakdown] = []
    bands: list[Band] = []
    directions: dict[str, Violation] = {}
    for rival, other in zip(rivals, others, strict=True):
        gain = Gain(stage, own, other)
        gradient = gain.gradient()
        for word in violations:
            violation = exclusion.along(word, gradient)
            directions.setdefault(word, violation)
            found, band = _gain_lost(gain, rival, violation, most, around, critical)
            breakdowns.append(found)
            bands.append(band)
            tick(1)
    for violation in directions.values():
        again = Replanned(exclusion, violation, problem, chosen, rows, progress)
        breakdowns += _flips(again, most)
    effects = [e for v in directions.values() for e in _effects(exclusion, v, critical, most)]
    return Sensitivity(tuple(breakdowns), tuple(bands), tuple(effects), level)


def _check(level: float, most: float, episodes: int, draws: int) -> None:
    check_level(level)
    for name, value, least in (
        ("most", most, 0.0),
        ("episodes", episodes, 0),
        ("draws", draws, -1),
    ):
        if not value > least:
            raise InputError(f"{name} is {value}; a number above {least} is wanted")


def _gain_lost(
    gain: Gain,
    rival: str,
    violation: Violation,
    most: float,
    around: Floats | None,
    critical: float,
) -> tuple[Breakdown, Band]:
    """Find where a gain is gone, and its band on both sides of there."""
    lost = smallest_loss(gain, violation, most)
    reach = most if not lost else min(1.5 * abs(lost), most)
    t = np.linspace(-reach, reach, BAND)
    (gains, error), se = gain.at(violation, t), np.full(BAND, np.nan)
    if around is not None:
        anchors = np.linspace(-reach, reach, ANCHORS)
        se = np.hypot(np.interp(t, anchors, gain.se(violation, anchors, around)), error)
    sizes = [gain.exclusion.size(violation, v) for v in t]
    share = np.sign(t) * [s.most_share for s in sizes]
    correlation = np.sign(t) * [s.most_correlation for s in sizes]
    band = Band(rival, violation.name, t, share, correlation, gains, se, error, critical)
    unsure = None if around is None else smallest_crossing(t, band.lower, violation.signs)
    limit = gain.exclusion.size(violation, most)
    gone, doubted = gain.size(violation, lost), gain.size(violation, unsure)
    asked = around is not None
    return Breakdown(f"gain over {rival}", violation.name, gone, doubted, limit, asked), band


def _flips(again: Replanned, most: float) -> list[Breakdown]:
    """Find where the recommended action of each state flips."""
    exclusion, violation = again.exclusion, again.violation
    names, found = again.problem.model.action, []
    for row, x in enumerate(again.states):
        flip = again.first_flip(row, most)
        size = None if flip is None else exclusion.size(violation, flip[0])
        shown = ", ".join(f"{v:.3g}" for v in x[:4]) + (", ..." if len(x) > 4 else "")
        what = "action" if flip is None else names[flip[1]]
        limit = exclusion.size(violation, most)
        found.append(Breakdown(f"{what} at ({shown})", violation.name, size, None, limit))
    return found


def _effects(
    exclusion: Exclusion, violation: Violation, critical: float, most: float
) -> list[EffectBand]:
    """Describe each coefficient of a feature that z does not share with the state.

    The worst direction is that of each coefficient, which costs sigma_i |L_j| for a size of 1.
    """
    layout, model, L = exclusion.moments.layout, exclusion.model, exclusion.influence
    se = _standard_errors(model)
    found = []
    for i in np.flatnonzero(np.linalg.norm(violation.G, axis=1)).tolist():
        for j in sorted(set(layout.phi_columns) - set(layout.shared)):
            own = exclusion.against(i, j) if violation.name == WORST else violation
            slope = float(exclusion.noise[i] * own.G[i] @ L[j])
            t = float(model.W[i, j]) / slope if slope else np.inf
            tipping = exclusion.size(own, t) if abs(t) <= most else None
            names = layout.outputs[i], layout.phi_names[j], violation.name
            numbers = float(model.W[i, j]), float(se[i, j]), slope
            found.append(EffectBand(*names, *numbers, critical, tipping))
    return found


def _standard_errors(model: Dynamics) -> Floats:
    """Standard errors of W, (d_y, d_phi); NaN where they are not known."""
    if model.bread.size == 0:
        return np.full(model.W.shape, np.nan)
    variance: Any
    if model.W_cov is None:
        variance = np.outer(np.diag(model.noise_cov), np.diag(model.bread))
    elif model.W_cov.ndim == 2:
        variance = np.diag(model.W_cov).reshape(model.W.shape)
    else:
        variance = np.diagonal(model.W_cov, axis1=1, axis2=2)
    se: Floats = np.sqrt(np.maximum(variance, 0.0))
    return se


def _planner(policy: Any, planner: Planner | str | None) -> Planner:
    if isinstance(planner, str):
        return make_planner(planner)
    if planner is None and not isinstance(policy, Policy):
        raise InputError("planning again needs planner= beside a policy that is a function")
    chosen: Planner = planner or planner_of(policy)
    return chosen
