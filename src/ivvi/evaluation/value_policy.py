"""`value`: what a policy is worth in the estimated dynamics, with an interval."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ivvi.actions import Actions
from ivvi.diagnostics.tails_and_quantiles import check_level
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError, IvviWarning, PlanningWarning, hint
from ivvi.estimators import StandardErrors
from ivvi.evaluation.actors import Acting, BehaviourActor, Fixed, OneAction
from ivvi.evaluation.episode_sampling import RolloutDesign
from ivvi.evaluation.interval_estimate import IntervalEstimate, gains_of
from ivvi.evaluation.model_draws import drawing_method
from ivvi.evaluation.observed_return import Gap, from_log, from_moments, gap_of
from ivvi.evaluation.survival import end_curves
from ivvi.evaluation.valuation import Valuation
from ivvi.evaluation.value_caveats import as_long, horizon_notes, value_notes
from ivvi.evaluation.value_estimator import ValueEstimator
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.fitting import estimate
from ivvi.logs import Log
from ivvi.option_values import RIVALS
from ivvi.planning import MPC, Auto, Cautious, Problem, ValueIteration
from ivvi.planning.cautious import CautiousRule
from ivvi.planning.mpc.mpc import MPCRule
from ivvi.planning.simple_rules import HeldRule, Unplanned, UsualRule
from ivvi.planning.value_iteration.plan_visited_states import VisitedValue
from ivvi.planning.value_iteration.value_iteration import ValueRule
from ivvi.policy.plan import make_planner
from ivvi.policy.policy import Policy, check_steps
from ivvi.policy.saved_policy import as_policy
from ivvi.rewards import Function, Learned

FIRST_DRAWS, MOST_DRAWS, ASKED_DRAWS = 500, 8000, 1_000_000
"""Default, automatic maximum and allowed maximum number of drawn models."""


def value(  # noqa: PLR0913
    policy: Any,
    model: Any,
    *,
    reward: Any = None,
    actions: Any = None,
    horizon: int | None = None,
    discount: float | None = None,
    terminal: Callable[..., Any] | None = None,
    reward_at_end: Any = None,
    instrument: Mapping[str, Any] | None = None,
    against: Sequence[str] | Mapping[str, Any] | None = None,
    method: str = "auto",
    draws: int | None = None,
    replan: bool = False,
    level: float = 0.95,
    starts: Any = None,
    log: Log | None = None,
    cluster: str | tuple[str, ...] = (),
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Valuation:
    """Estimate what a policy earns in the estimated dynamics, with an interval.

    The value is the expected return of an episode from the log's first states (or from
    `starts`), when nobody acts on what was not recorded. The interval carries the errors of W,
    of the noise, of the behaviour policy, of the sampled first states and of the simulation.

    Parameters
    ----------
    policy
        A `Policy` or the folder where one was saved, a function of states (n, d_x), one action
        (d_a,), or a rival's word.
    model
        A `Fit`, the folder where one was saved, or `Dynamics`.
    reward, actions, horizon, discount, terminal, reward_at_end, instrument
        As for `ivvi.plan`; those of the policy by default, and the log's range of actions.
    against
        Rivals: ``behaviour`` (the log's own policy, once the confounder no longer helps it),
        ``zero`` (does nothing), ``lowest`` and ``highest`` (of the log's actions),
        ``least-squares`` (planned the same way in the confounded dynamics); or policies by name. By
        default the log's own policy, least squares, and zero where it lies inside the log's
        actions, else the lowest and the highest.
    method
        ``bootstrap`` (episodes, needs `estimate(episodes=True)`), ``wild`` (the same moments,
        for few clusters), ``asymptotic`` (the normal law of W), or ``auto``: the bootstrap where
        there are per-episode moments, or those of the clusters of the fit; ``wild`` where the
        errors of the fit are.
    draws
        Number of models. By default 500, and more until the simulation error of each end of
        each interval is below 5% of its width, up to 8,000. A number asks for exactly that many,
        with a note if they are too few.
    replan
        Plan again in every draw: the interval then carries the optimism of a plan that was
        chosen and is valued by the same log.
    level
        Of the intervals.
    starts
        First states, (m, d_x), to value the policy from just these; by default those of the
        log's episodes, as a sample of what may come.
    log
        The log, from which the return of its own policy is read if the moments do not give it.
    cluster
        Up to three columns to cluster the errors of W by, instead of the fit's own. Columns other
        than the fit's need the `log`.
    seed, progress
        Seed of everything random; called with the number of models just done.

    Examples
    --------
    >>> import ivvi
    >>> env = ivvi.make_env("linear", dim=2)
    >>> fit = ivvi.estimate(env.collect(episodes=40, horizon=50, seed=1), episodes=True)
    >>> policy = ivvi.plan(fit, "quadratic:weight=0.05", (-1, 1), horizon=10, method="mpc")
    >>> worth = ivvi.value(policy, fit, against=("zero",), draws=100)
    >>> worth.gains["zero"].interval[0] > 0
    True
    """
    policy = as_policy(policy)
    source = ValueInputs.of(model)
    if cluster:
        source = clustered_by(source, cluster, log)
    settings: dict[str, Any] = {"horizon": horizon, "discount": discount, "terminal": terminal}
    settings |= {"reward_at_end": reward_at_end, "instrument": instrument}
    problem = problem_of(policy, source, reward, actions, settings)
    check_level(level)
    if draws is not None and not 20 <= draws <= ASKED_DRAWS:
        raise InputError(f"draws is {draws:,}; expected 20 to {ASKED_DRAWS:,} for an interval")
    name = policy if isinstance(policy, str) else "policy"
    planner = planner_of(policy)
    rivals = by_name(default_rivals(source) if against is None else against)
    rival = rivals.get(name, policy)
    if rival is not policy and not (isinstance(rival, str) and rival == name):
        raise InputError(
            f"a rival is called {name!r}, which is already the name of the valued policy; choose "
            "another name"
        )
    everyone = {name: policy, **rivals}
    actors = {word: acting(chosen, source, problem, planner) for word, chosen in everyone.items()}
    if replan and not isinstance(policy, Policy):
        raise InputError("planning again needs a policy from ivvi.plan")
    rollouts = RolloutDesign.of(problem, starts, draws or FIRST_DRAWS, seed)
    count = draws or FIRST_DRAWS
    estimator = ValueEstimator(source, problem, rollouts, method, count, level, seed, progress)
    values = _settled(estimator, actors, planner if replan else None, grow=draws is None)
    observed = from_moments(source, problem) if log is None else from_log(log, problem)
    is_plan = isinstance(policy, Policy)
    abstains = isinstance(policy, Policy) and getattr(policy.rule, "abstain", None) is not None
    doubts = (*problem.fit_doubts, *estimator.doubts(*actors[name], abstains=abstains))
    for text in doubts:
        warnings.warn(text, PlanningWarning, stacklevel=2)
    return Valuation(
        values,
        gains_of(values),
        source.verdict,
        observed,
        problem.horizon,
        problem.discount,
        rollouts.words,
        drawing_method(source, method),
        replan,
        (
            *horizon_notes(source, problem, observed, chosen=horizon is not None or is_plan),
            *value_notes(source, problem, observed, drawing_method(source, method)),
            *rollouts.notes,
            *_too_few(values),
        ),
        _gap(estimator, actors, values, observed) if as_long(source, problem) else None,
        *end_curves(estimator, actors),
        warnings=doubts,
    )


def _gap(
    estimator: ValueEstimator,
    actors: Mapping[str, Acting],
    values: dict[str, IntervalEstimate],
    observed: float | None,
) -> Gap | None:
    """Return the gap between the log's own return and its policy's value; None if not known."""
    if observed is None or "behaviour" not in values:
        return None
    source, confounded = estimator.source, None
    if source.moments is not None:
        least_squares = replace(source, model=source.baseline)
        confounded = replace(estimator, source=least_squares).in_estimate(*actors["behaviour"])
    return gap_of(source, values["behaviour"], observed, confounded, estimator.seed)


def _settled(
    estimator: ValueEstimator, actors: Mapping[str, Acting], planner: Any, *, grow: bool
) -> dict[str, IntervalEstimate]:
    """Return values with as many draws as their intervals need, twice as many at a time."""
    firsts = estimator.first_returns(actors)
    values, count = estimator.values(actors, firsts, planner), estimator.draws
    while grow and count < MOST_DRAWS and _unsettled(values):
        estimator = replace(estimator, draws=count, stage=estimator.stage + 1)
        more = estimator.values(actors, firsts, planner)
        values, count = {name: v.with_more(more[name]) for name, v in values.items()}, 2 * count
    return values


def _unsettled(values: dict[str, IntervalEstimate]) -> list[str]:
    """Return the names of values and gains whose intervals have too much simulation error."""
    named = {f"the value of {name}": amount for name, amount in values.items()}
    named |= {f"the gain over {name}": amount for name, amount in gains_of(values).items()}
    return [name for name, amount in named.items() if not amount.is_settled]


def _too_few(values: dict[str, IntervalEstimate]) -> tuple[str, ...]:
    """Return a note that names intervals with too few draws, or ()."""
    if not (names := _unsettled(values)):
        return ()
    draws = len(next(iter(values.values())).draws)
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    text = f"{draws:,} draws are few for the interval of {names[0]}{others}"
    warnings.warn(text, IvviWarning, stacklevel=3)
    return (text,)


def clustered_by(
    source: ValueInputs, cluster: str | tuple[str, ...], log: Log | None
) -> ValueInputs:
    """Return the source with errors clustered by other columns, read from its log."""
    requested, moments = StandardErrors(cluster=cluster), source.moments
    rows = log is not None and moments is not None
    if requested.are_those_of(source.clusters, rows=rows) or moments is None:
        return source
    phi, psi = moments.design.phi, moments.design.psi
    again = estimate(log, phi, psi, method=source.method, se=requested, episodes=True)
    return ValueInputs.of(again)


def by_name(against: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return rivals by name; a word is its own name."""
    return dict(against) if isinstance(against, Mapping) else {word: word for word in against}


def default_rivals(source: ValueInputs) -> tuple[str, ...]:
    """Return the default rivals; zero only where it lies in the range of the log's actions.

    Least squares is one where its dynamics are known.
    """
    low, high = _lowest_and_highest(source.model)
    inside = bool(((low <= 0) & (high >= 0)).all())
    least_squares = ("least-squares",) if source.knows_least_squares else ()
    return ("behaviour", *(("zero",) if inside else ("lowest", "highest")), *least_squares)


def acting(policy: Any, source: ValueInputs, problem: Problem, planner: Any) -> Acting:
    """Return the actor and its parameters for a policy in any of its forms."""
    width = len(problem.model.action)
    if isinstance(policy, str):
        return _acting_by_word(policy, source, problem, planner)
    if hasattr(policy, "begin") and hasattr(policy, "act"):
        check_steps(policy, problem.horizon)
        return Fixed.of(policy)
    if callable(policy):
        return policy, ()
    try:
        action = np.asarray(policy, dtype=np.float64)
    except (TypeError, ValueError):
        action = np.zeros(0)
    if action.shape != (width,) or not np.isfinite(action).all():
        raise InputError(
            f"expected a policy as a function of states, one action of {width} numbers "
            f"({', '.join(problem.model.action)}), or a word; found {policy!r}"
        )
    return OneAction(), action


def _acting_by_word(word: str, source: ValueInputs, problem: Problem, planner: Any) -> Acting:
    if word == "zero":
        return OneAction(), np.zeros(len(problem.model.action))
    if word in ("lowest", "highest"):
        if len(problem.model.acted) == 0:
            raise InputError(
                f"the model holds no rows of the log, so the {word} recorded action is unknown"
            )
        return OneAction(), _lowest_and_highest(problem.model)[word == "highest"]
    if word == "behaviour":
        if source.behaviour is None:
            raise InputError(
                "the behaviour policy is unknown: this model was fitted from moments and "
                "holds no rows of the log; name other rivals, such as zero (against=, --against)"
            )
        return BehaviourActor(source.behaviour.features), source.behaviour.rows
    if word == "least-squares":
        return Fixed.of(_least_squares(source, problem, planner))
    raise InputError(f"unknown policy {word!r}{hint(word, RIVALS)}")


def _least_squares(source: ValueInputs, problem: Problem, planner: Any) -> Policy:
    """Return a plan in the confounded dynamics, made as the policy was."""
    model = source.baseline
    reward = Learned(model) if isinstance(problem.reward, Learned) else problem.reward
    confounded = replace(problem, model=model, reward=reward)
    chosen = Auto() if isinstance(planner, Unplanned) else planner
    return Policy(confounded, chosen.solve(confounded))


def planner_of(policy: Any) -> Any:
    """Return a planner like the one that made a policy; all but MPC have default settings.

    For a policy that no planner made, return the default planner.
    """
    if not isinstance(policy, Policy):
        return Auto()
    rule: Any = policy.rule
    if isinstance(rule, CautiousRule):
        inner = planner_of(replace(policy, rule=rule.inner))
        return Cautious(inner, rule.caution, rule.abstain, rule.fallback)
    if isinstance(rule, MPCRule):
        return MPC(lookahead=rule.lookahead, starts=rule.starts)
    if isinstance(rule, ValueRule):
        return VisitedValue() if rule.planner == "visited" else ValueIteration(rule.planner)
    return Unplanned(rule) if isinstance(rule, HeldRule | UsualRule) else make_planner(rule.kind)


def problem_of(
    policy: Any,
    source: ValueInputs,
    reward: Any,
    actions: Any,
    overrides: Mapping[str, Any],
) -> Problem:
    """Return the problem to value, in the estimated dynamics; the policy's own fills the gaps.

    `overrides` holds horizon, discount, terminal, reward_at_end and instrument.
    """
    model = source.model
    planned = policy.problem if isinstance(policy, Policy) else None
    if planned is not None:
        for role in ("state", "action"):
            own, other = getattr(planned.model, role), getattr(model, role)
            if own != other:
                raise InputError(
                    f"the policy's {role} columns are {', '.join(own)}; those of the model "
                    f"are {', '.join(other)}"
                )
    if reward is None and planned is None:
        raise InputError("a policy that is not from ivvi.plan needs a reward")
    if actions is None:
        actions = _range_of(model) if planned is None else planned.actions
    chosen_reward = reward if reward is not None else planned.reward  # type: ignore[union-attr]
    if isinstance(chosen_reward, Function):
        chosen_reward = replace(chosen_reward, nodes=())  # those of this model
    settings: dict[str, Any] = {"horizon": None, "discount": 1.0, "terminal": None}
    settings["reward_at_end"] = 0.0
    if planned is not None:
        settings = {name: getattr(planned, name) for name in settings}
    settings |= {name: value for name, value in overrides.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanningWarning)
        return Problem.of(model, chosen_reward, actions, **settings)


def _range_of(model: Dynamics) -> Actions:
    """Return the box between the lowest and the highest actions of the log."""
    low, high = _lowest_and_highest(model)
    return Actions.box(low, np.where(high > low, high, low + 1.0))


def _lowest_and_highest(model: Dynamics) -> tuple[np.ndarray, np.ndarray]:
    """Return each action's range in the log, (d_a,) each; -1 and 1 if no row was kept."""
    if len(model.acted) == 0:
        ends = np.ones(len(model.action))
        return -ends, ends
    return model.acted.min(axis=0), model.acted.max(axis=0)
