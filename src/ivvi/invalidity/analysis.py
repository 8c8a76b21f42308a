"""`sensitivity`: what if the instrument is not quite valid?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ivvi.diagnostics.quantiles import check_level
from ivvi.dynamics import Dynamics, load_model
from ivvi.errors import InputError, nearest
from ivvi.files import load_folder
from ivvi.fitting import Fit
from ivvi.invalidity.flips import Replanned
from ivvi.invalidity.gains import (
    ANCHORS,
    BAND,
    Gain,
    deviations,
    smallest_crossing,
    smallest_loss,
)
from ivvi.invalidity.results import Band, Breakdown, EffectBand, Sensitivity
from ivvi.invalidity.violations import WORST, Exclusion, Violation
from ivvi.invalidity.worlds import Worlds, constant
from ivvi.layout import Floats
from ivvi.planners.problem import Planner, Problem
from ivvi.planning import make_planner
from ivvi.policy import Policy
from ivvi.shard import Shard
from ivvi.valuation.actors import Habitual
from ivvi.valuation.evidence import Evidence
from ivvi.valuation.valuing import least_squares_policy

RIVALS = ("behaviour", "zero", "least-squares")


def sensitivity(  # noqa: PLR0913
    policy: Any,
    fit: Fit | str | os.PathLike[str],
    *,
    against: Mapping[str, Any] | Sequence[str] = ("zero",),
    violations: Sequence[str] = ("worst",),
    states: Any = None,
    problem: Problem | None = None,
    planner: Planner | str | None = None,
    starts: Any = None,
    episodes: int = 64,
    horizon: int | None = None,
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
    policy
        A policy of `ivvi.plan`, or any function of states with `problem` beside it.
    fit
        A `Fit`, or the folder of a saved model that keeps its moments.
    against
        Rivals by name, policies or functions of states; or words: ``behaviour`` (the log's own
        policy without the confounder's help), ``zero`` (does nothing), ``least-squares``
        (planned alike in the confounded dynamics).
    violations
        Directions: ``worst``, any direct effect of the instruments on every output, in the
        direction that costs the gain most; an instrument such as ``z0``, on every output;
        ``z0:x1``, on one; with a sign, ``+z0:x1``, direct effects of that sign alone.
    states
        States (k, d_x) whose recommended action is planned again under doubt.
    problem, planner
        What is planned for and how; by default the policy's own.
    starts, episodes, horizon
        First states (m, d_x), taken in turn (by default a sample of the log's states),
        simulated episodes, and their length (by default the problem's).
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
    >>> found = ivvi.sensitivity(policy, fit, draws=0)
    >>> 0.5 < found.breakdowns[0].size.most_share < 1.5
    True
    """
    check_level(level)
    for name, value, least in (
        ("most", most, 0.0),
        ("episodes", episodes, 0),
        ("draws", draws, -1),
    ):
        if not value > least:
            raise InputError(f"{name} is {value}; a number above {least} is wanted")
    exclusion = _opened(fit)
    wanted = _problem(policy, problem, exclusion.model, horizon)
    worlds = Worlds(wanted, _starts(starts, exclusion.model, episodes, seed), seed)
    tick = progress or (lambda steps: None)
    critical = NormalDist().inv_cdf((1 + level) / 2)
    around = deviations(exclusion.model, draws, np.random.default_rng(seed))
    breakdowns: list[Breakdown] = []
    bands: list[Band] = []
    directions: dict[str, Violation] = {}
    for rival, other in _rivals(against, fit, policy, wanted, seed).items():
        gain = Gain(exclusion, worlds, policy, other)
        gradient = gain.gradient()
        for word in violations:
            violation = exclusion.along(word, gradient)
            directions.setdefault(word, violation)
            found, band = _gain_lost(gain, rival, violation, most, around, critical)
            breakdowns.append(found)
            bands.append(band)
            tick(1)
    for violation in directions.values() if states is not None else ():
        chosen = _planner(policy, planner)
        again = Replanned(exclusion, violation, wanted, chosen, _rows(states, wanted), progress)
        breakdowns += _flips(again, most)
    effects = [e for v in directions.values() for e in _effects(exclusion, v, critical, most)]
    return Sensitivity(tuple(breakdowns), tuple(bands), tuple(effects), level)


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
    gains, se = gain.at(violation, t), np.full(BAND, np.nan)
    if around is not None:
        anchors = np.linspace(-reach, reach, ANCHORS)
        se = np.interp(t, anchors, gain.se(violation, anchors, around))
    sizes = [gain.exclusion.size(violation, v) for v in t]
    share = np.sign(t) * [s.most_share for s in sizes]
    correlation = np.sign(t) * [s.most_correlation for s in sizes]
    band = Band(rival, violation.name, t, share, correlation, gains, se, critical)
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


def _opened(source: Any) -> Exclusion:
    """Return moments and model of a fit, or of a saved model."""
    if isinstance(source, Fit):
        if source.differenced:
            raise InputError("a fit from differences has no moments of its levels to doubt")
        method, moments, model = source.method, source.moments, source.model
    elif isinstance(source, str | os.PathLike):
        model, moments = load_model(source), Shard.load(source).moments
        method = load_folder(source, "model")[0]["facts"].get("method", "")
    else:
        raise InputError(f"{type(source).__name__} was given; a fit or a saved model is wanted")
    if method == "least-squares":
        raise InputError("least squares uses no instrument: there is none to doubt")
    return Exclusion(moments, model)


def _problem(policy: Any, problem: Problem | None, model: Dynamics, horizon: int | None) -> Problem:
    """Return what is planned for, in the model of the fit."""
    if problem is None:
        if not isinstance(policy, Policy):
            raise InputError("a function is no plan: give the problem beside it, problem=")
        problem = policy.problem
    if problem.model.W.shape != model.W.shape or problem.model.state != model.state:
        raise InputError(
            f"the policy was planned for states {', '.join(problem.model.state)} and the model "
            f"has {', '.join(model.state)}, or other features; a policy of this model is wanted"
        )
    steps = problem.horizon if horizon is None else horizon
    if steps < 1:
        raise InputError(f"the horizon is {steps}; at least 1 is wanted")
    return replace(problem, model=model, horizon=steps)


def _rivals(against: Any, fit: Any, policy: Any, problem: Problem, seed: int) -> dict[str, Any]:
    """Return the rivals by name; a word stands for a policy."""
    named = dict(against) if isinstance(against, Mapping) else {word: word for word in against}
    if not named:
        raise InputError("no rival was given; a gain is over somebody, such as zero")
    for name, rival in named.items():
        if isinstance(rival, str):
            named[name] = _of_word(rival, fit, policy, problem, seed)
    return named


def _of_word(word: str, fit: Any, policy: Any, problem: Problem, seed: int) -> Any:
    if word not in RIVALS:
        hint = nearest(word, RIVALS) or f"; {', '.join(RIVALS)} are known, or a policy"
        raise InputError(f"unknown rival {word!r}{hint}")
    if word == "zero":
        return constant(np.zeros(len(problem.model.action)))
    evidence = Evidence.of(fit)
    if word == "least-squares":
        return least_squares_policy(evidence, problem, _planner(policy, None))
    if evidence.habit is None:
        raise InputError("the behaviour policy is not known: the model holds no rows of the log")
    return Habitual(evidence.habit, seed)


def _starts(starts: Any, model: Dynamics, episodes: int, seed: int) -> np.ndarray:
    pool = model.states if starts is None else np.atleast_2d(np.asarray(starts, float))
    if pool.size == 0 or pool.shape[1] != len(model.state):
        raise InputError(
            f"first states of shape {pool.shape} were given; rows of {len(model.state)} are "
            f"wanted ({', '.join(model.state)})"
        )
    order = np.random.default_rng(seed).permutation(len(pool))
    return np.asarray(pool[np.resize(order, episodes)])  # each as often as the others, or once


def _rows(states: Any, problem: Problem) -> np.ndarray:
    found = np.atleast_2d(np.asarray(states, dtype=np.float64))
    width = len(problem.model.state)
    if found.ndim != 2 or found.shape[1] != width or not np.isfinite(found).all():
        raise InputError(
            f"states of shape {found.shape} were given; rows of {width} finite numbers are wanted"
        )
    return found


def _planner(policy: Any, planner: Planner | str | None) -> Planner:
    if planner is None and not isinstance(policy, Policy):
        raise InputError("planning again needs planner= beside a policy that is a function")
    if planner is not None and not isinstance(planner, str):
        return planner
    word = planner or policy.rule.kind
    ahead = getattr(policy.rule, "lookahead", None) if planner is None else None
    return make_planner(word, **({} if ahead is None else {"lookahead": ahead}))
