"""`plan`: from a model and a reward to a policy."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.range_warnings import action_doubts
from ivvi.errors import InputError, PlanningWarning, hint
from ivvi.fitting.saved_fit import load_saved
from ivvi.planning import MPC, SPEDE, Auto, Cautious, Planner, Problem, ValueIteration
from ivvi.planning.auto import PlannerComparison
from ivvi.planning.comparison import Comparison, Trials
from ivvi.planning.problem import Rule
from ivvi.planning.progress import StepProgress, report_steps_to
from ivvi.policy.policy import Policy

PLANNERS: dict[str, type[Any]] = {
    "auto": Auto,
    "mpc": MPC,
    "value-iteration": ValueIteration,
    "spede": SPEDE,
}

FORCED = 24
"""Episodes in which a plan with a forced method is compared with its rivals."""

logger = logging.getLogger(__name__)


def make_planner(word: str, **settings: Any) -> Planner:
    """Return the planner for a word, with settings."""
    if word not in PLANNERS:
        raise InputError(f"unknown planner {word!r}{hint(word, PLANNERS)}")
    return PLANNERS[word](**settings)  # type: ignore[no-any-return]


class HasModel(Protocol):
    """An object with dynamics, such as a fit."""

    @property
    def model(self) -> Dynamics:
        """The dynamics."""
        ...


def plan(  # noqa: PLR0913
    model: Dynamics | HasModel | str | os.PathLike[str],
    reward: Any,
    actions: Any = None,
    *,
    horizon: int | None = None,
    discount: float = 1.0,
    method: Planner | str = "auto",
    caution: float = 0.0,
    abstain: float | None = None,
    fallback: Any = "best",
    states: Any = None,
    terminal: Any = None,
    reward_at_end: Any = 0.0,
    instrument: Mapping[str, Any] | None = None,
    compare: bool = True,
    seed: int = 0,
    progress: StepProgress | None = None,
) -> Policy:
    """Plan in estimated dynamics.

    Parameters
    ----------
    model
        A fit, its dynamics (`fit.model`), or the folder where either was saved.
    reward
        A reward word (``quadratic:weight=0.05,target=0``, ``linear:..``, ``learned``,
        ``module:function``), a reward of `ivvi.rewards`, or a function of (x, a),
        (x, a, x') or (x, a, x', h) on batches, written for JAX. A function may also ask for
        ``context`` and ``instrument`` by parameter name: ``instrument["cost"]`` is (n,).
    actions
        (low, high) of a box, the rows of a finite set, or `ivvi.Actions`. Actions that are
        categories in the log need none: their levels are the allowed actions.
    horizon, discount
        Steps of an episode, and the weight of a step relative to the one before. By default the
        usual length of the log's episodes, which 95% of them do not exceed, at most 1,000; one step
        where the model only has the reward of a decision, 100 where the log's episodes are not
        known.
    method
        ``auto`` (the default) plans with every method that fits the problem, runs the plans and
        simple rivals in the model, and keeps the one that earns most (`policy.comparison`);
        ``mpc``, ``value-iteration``, ``spede``, or a planner with settings forces one.
    caution
        From 0 (none) to a confidence below 1: the plan leaves the fallback only as far as its
        gain has a lower bound above zero (`ivvi.planning.cautious`).
    abstain
        Share of the log's rows that count as supported, such as 0.99: where state and action
        lie outside, the policy takes the fallback's action.
    fallback
        The rule that a cautious plan falls back on: ``usual`` (what was done in the log), ``zero``,
        an action (d_a,), a policy, or ``best``, the simple rule with the best lower bound of its
        value.
    states
        States where the plan should be good, (n, d_x); by default a sample of the log's.
    terminal
        A function that says which states (..., d_x) end an episode.
    reward_at_end
        Paid when the episode ends for good, such as -1 for a death, if the log has a `terminal`
        column or `terminal` is given; ``{"died": -1, "discharged": 1}`` pays each kind of end that
        the log names.
    instrument
        Value of each instrument, by name, for a reward that uses it; by default the reward is
        averaged over the log's instruments.
    compare
        Whether a plan with a forced method is also compared, in the model, with rivals that need no
        plan.
    seed
        Seed of planners that draw at random, and of the episodes in which plans are compared.
    progress
        Called with the number of steps that a planner has just done.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=2).collect(episodes=20, horizon=100, seed=1)
    >>> policy = ivvi.plan(ivvi.estimate(log), "quadratic:weight=0.05", (-1, 1), horizon=5)
    >>> policy([10.0, 10.0]).tolist()
    [1.0, 1.0]
    """
    dynamics = _dynamics(model)
    planner = make_planner(method) if isinstance(method, str) else method
    if caution or abstain is not None:
        planner = Cautious(planner, caution, abstain, fallback)
    problem = Problem.of(
        dynamics,
        reward,
        actions,
        horizon=horizon,
        discount=discount,
        states=states,
        terminal=terminal,
        reward_at_end=reward_at_end,
        instrument=instrument,
    )
    logger.info("planning %d steps with %s in %s", problem.horizon, planner, problem.actions)
    with report_steps_to(progress):
        rule, comparison = _planned(problem, planner, seed, compare=compare)
    beyond = action_doubts(dynamics, problem.actions)
    doubts = () if comparison is None else comparison.doubts
    for text in (*beyond, *weakness(problem), *doubts):
        warnings.warn(text, PlanningWarning, stacklevel=2)
    return Policy(problem, rule, comparison)


def _dynamics(source: Any) -> Dynamics:
    """Return the dynamics of a fit, of dynamics, or of a saved folder."""
    if isinstance(source, str | os.PathLike):
        source, _ = load_saved(source)
    dynamics = getattr(source, "model", source)
    if isinstance(dynamics, Dynamics):
        return dynamics
    raise InputError(
        "expected a fit (ivvi.fit), its dynamics or the folder of a saved one; found "
        f"{type(source).__name__}"
    )


def weakness(problem: Problem) -> tuple[str, ...]:
    """Return the fit's warnings on features and weak instruments, to repeat at each decision."""
    verdict, doubts = problem.model.verdict, problem.fit_doubts
    if verdict is None or verdict.word in ("", "strong"):
        return doubts
    return (f"{verdict.sentence}; the plan rests on them", *doubts)


def _planned(
    problem: Problem, planner: Planner, seed: int, *, compare: bool
) -> tuple[Rule, Comparison | None]:
    """Plan, and compare the plan with rivals that need none."""
    if isinstance(planner, Auto):
        return planner.compare(problem, seed=seed)
    rule = planner.solve(problem, seed=seed)
    if not compare or not (len(problem.model.starts) or len(problem.model.states)):
        return rule, None
    contest = PlannerComparison(problem, Trials.of(problem, seed, FORCED))
    contest.enter_rivals(seed)
    contest.enter(rule.kind, rule)
    return rule, contest.compared(rule.kind)
