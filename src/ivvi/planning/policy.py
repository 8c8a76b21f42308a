"""A policy: states in, actions out; saved without pickle, summed up in words, and drawn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ivvi._io.files import load_folder, nest, save_folder, unnest
from ivvi._io.plotting import IV, check_figure, finished, make_axes
from ivvi._io.result import (
    UNTRUSTED,
    Brief,
    Records,
    TableResult,
    as_sentence,
    brief_html,
    instrument_sentence,
)
from ivvi._io.trust import Trust, trusting
from ivvi.actions import Actions, make_actions
from ivvi.dynamics.encoding import as_columns, state_numbers
from ivvi.dynamics.ends import end_reward, end_reward_to_json
from ivvi.dynamics.log_range import decision_doubts
from ivvi.dynamics.rollout import Decision
from ivvi.dynamics.saved_model import model_from_parts
from ivvi.errors import FileError, InputError, PlanningWarning, TrustError
from ivvi.features.blocks import Array
from ivvi.features.custom_block import import_path, import_saved
from ivvi.planning import RULES
from ivvi.planning.comparison import Comparison
from ivvi.planning.problem import Problem, Rule
from ivvi.rewards import reward_from_json, reward_to_json

KIND = "policy"
LAST_STEP = 2**31
"""A step that no program counts to."""
MOST_CURVES = 6
"""Curves that are drawn."""
OUTSIDE = "Do not act on it: it rests on what no row of the log shows. {}"
VALUE = (
    "`ivvi value` adds the uncertainty of the model to these numbers, whose +- is that of the "
    "simulation alone; `ivvi act` asks the policy what to do."
)
MOST_LEVELS = 4
"""Levels of a category that a sentence lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Policy(TableResult):
    """What a planner recommends.

    Calling it with states gives actions. It is deterministic: the same states give the
    same actions.

    Attributes
    ----------
    problem
        What was planned for: model, reward, actions, horizon.
    rule
        How the planner decides.
    comparison
        What the plan and its rivals earn in the model; None where it was not compared.
    """

    problem: Problem
    rule: Rule
    comparison: Comparison | None = None

    def __call__(self, x: Any, step: int = 0) -> Any:
        """Return actions (n, d_a) for states (n, d_x), or (d_a,) for one state (d_x,).

        For a table with the columns of the log, a mapping or a data frame, the actions are
        columns by name, categories by the names of their levels. A `PlanningWarning` tells of
        states far outside the log's, and of actions outside.
        """
        if (columns := as_columns(x)) is not None:
            model = self.problem.model
            return model.decode_actions(self(model.encode_states(columns), step))
        actions = self.decide(x, step)
        for text in self.doubts(x, actions):
            warnings.warn(text, PlanningWarning, stacklevel=2)
        return actions

    def doubts(self, x: Any, actions: np.ndarray) -> tuple[str, ...]:
        """Say which states (n, d_x) and actions (n, d_a) lie outside those of the log.

        A rule that abstains there has nothing to say.
        """
        if getattr(self.rule, "abstain", None) is not None:
            return ()
        states = np.atleast_2d(np.asarray(x, dtype=np.float64))
        return decision_doubts(self.problem.model, states, np.atleast_2d(actions))

    def decide(self, x: Any, step: int = 0) -> np.ndarray:
        """Return actions as a call does, without a word about states that are unlike the log's."""
        names = self.problem.model.state
        states = state_numbers(x, self.problem.model)
        last = self.problem.horizon - 1
        if not isinstance(step, Integral) or not 0 <= step <= last:
            raise InputError(f"the step is {step!r}; the plan has the steps 0 to {last}")
        if states.ndim not in (1, 2) or states.shape[-1] != len(names):
            raise InputError(
                f"states of shape {states.shape} were given; expected (n, {len(names)}) or "
                f"({len(names)},) ({', '.join(names)})"
            )
        if not len(states):
            return np.empty((0, self.problem.actions.dim))
        with jax.enable_x64(True):
            decision = Decision.of(self)
            actions = _compiled(decision)(decision.numbers, np.atleast_2d(states), step)
            actions = np.asarray(actions)
        return actions if states.ndim == 2 else actions[0]

    def begin(self, n: int) -> Any:
        """Return what is remembered between the steps of n episodes that run side by side."""
        return self.rule.begin(n)

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Act inside `jax.jit`, with memory (a warm start) from step to step."""
        return self.rule.act(x, h, memory)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Save as a folder of JSON and npz, atomically; a user's reward by its import path."""
        problem = self.problem
        model, arrays = problem.model.parts()
        rule_arrays = self.rule.parts()[1]
        document = {
            "model": model,
            "reward": reward_to_json(problem.reward),
            "actions": problem.actions.to_json(),
            "horizon": problem.horizon,
            "discount": problem.discount,
            "terminal": _path_of(problem.terminal),
            "reward_at_end": end_reward_to_json(problem.reward_at_end),
            **self._chosen,
        }
        everything = nest("model", arrays) | nest("rule", rule_arrays)
        return save_folder(path, KIND, document, everything, force=force)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the actions along the states that they answer most; `path` saves the figure."""
        return plot_policy(self, path, force=force)

    @property
    def brief(self) -> Brief:
        """Is the instrument good enough, what does the plan earn, what to do next."""
        return plan_brief(self)

    def summary(self) -> str:
        """Return three plain sentences, then what the plan and its rivals earn in the model."""
        compared = [] if self.comparison is None else ["", self.comparison.summary()]
        return "\n".join([self.brief.text, *compared])

    def records(self) -> Records:
        """Return what the plan and its rivals earn in the model, one row each, the best first."""
        if self.comparison is None:
            raise InputError(
                "this policy has no table: it was not compared with other rules; plan with "
                "compare=True"
            )
        return self.comparison.records()

    def to_json(self) -> dict[str, Any]:
        """Describe the policy with JSON values: its rule and what it earns, without arrays."""
        problem = self.problem
        return {
            "horizon": problem.horizon,
            "discount": problem.discount,
            "reward_at_end": end_reward_to_json(problem.reward_at_end),
            "state": list(problem.model.state),
            "action": list(problem.model.action),
            **self._chosen,
            "brief": self.brief.to_json(),
        }

    @property
    def _chosen(self) -> dict[str, Any]:
        """The rule and the comparison as JSON values."""
        return {
            "rule": {"kind": self.rule.kind, **self.rule.parts()[0]},
            "comparison": None if self.comparison is None else self.comparison.to_json(),
        }

    def _repr_html_(self) -> str:
        problem = self.problem
        steps = f"{problem.horizon:,} steps, discount {problem.discount:g}"
        compared = (
            "" if self.comparison is None else f"<pre>{escape(self.comparison.summary())}</pre>"
        )
        planned = f"<p><b>{escape(repr(self))}</b>, planned for {steps}</p>"
        return brief_html(self) + planned + compared

    def __repr__(self) -> str:
        d_x = len(self.problem.model.state)
        states = f"{d_x} state{'' if d_x == 1 else 's'}"
        return f"Policy({self.rule.kind}, {states}, {self.problem.actions})"


def check_steps(policy: Any, steps: int) -> None:
    """Refuse more steps than a plan has: it says nothing about those after its end."""
    planned_steps = getattr(policy.rule, "steps", None) if isinstance(policy, Policy) else None
    if planned_steps is not None and steps > planned_steps:
        raise InputError(
            f"the plan has {planned_steps} steps; {steps} are asked for: plan with a longer horizon"
        )


def load_policy(path: str | os.PathLike[str], *, trust: Trust = ()) -> Policy:
    """Load what `Policy.save` saved.

    Nothing in it is executed. A reward, features, an end or a fallback that were a user's
    function are imported by their path, from the packages that are named in `trust` alone.
    """
    document, arrays = load_folder(path, KIND)
    with trusting(path, trust):
        return _from_parts(path, document, arrays)


@dataclass(frozen=True, slots=True)
class ActionCurve:
    """One action along one state (m,), the other states at their medians.

    `limits` are the lowest and highest values of the action over the curves of that action;
    `indicator` is whether the state is 0 or 1 in all rows, and only these two are shown.
    """

    action: str
    state: str
    x: np.ndarray
    a: np.ndarray
    limits: tuple[float, float]
    indicator: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether the action is the same along all states that were tried."""
        return self.limits[0] == self.limits[1]


def action_curves(policy: Policy, sample: np.ndarray) -> list[ActionCurve]:
    """Follow each action along the states that move it most, from their 5% to 95% quantile."""
    model = policy.problem.model
    low, middle, high = np.quantile(sample, (0.05, 0.5, 0.95), axis=0)
    is_indicator = np.all(np.isin(sample, (0.0, 1.0)), axis=0, keepdims=True)[0]
    low, high = np.where(is_indicator, 0.0, low), np.where(is_indicator, 1.0, high)
    grid, along, ends = np.linspace(0, 1, 41), [], [0, -1]
    for k, name in enumerate(model.state):
        x = np.tile(middle, (len(grid), 1))
        x[:, k] = low[k] + grid * (high[k] - low[k])
        drawn_points = ends if is_indicator[k] else slice(None)
        along.append(
            (name, x[drawn_points, k], policy.decide(x)[drawn_points], bool(is_indicator[k]))
        )
    each, curves = max(1, MOST_CURVES // len(model.action)), []
    for j, action in enumerate(model.action[:MOST_CURVES]):
        own = sorted(
            ((name, x, a[:, j], flag) for name, x, a, flag in along),
            key=lambda one: -float(np.ptp(one[2])),
        )[:each]
        limits = float(min(a.min() for *_, a, _ in own)), float(max(a.max() for *_, a, _ in own))
        curves += [ActionCurve(action, name, x, a, limits, flag) for name, x, a, flag in own]
    return curves


def draw_curve(ax: Any, curve: ActionCurve, colour: str = IV) -> None:
    """Draw the action along a state, or at 0 and 1 of an indicator."""
    if curve.indicator:
        ax.plot(curve.x, curve.a, "o", color=colour, ms=7)
        ax.set_xticks((0, 1))
        ax.set_xlim(-0.5, 1.5)
    else:
        ax.plot(curve.x, curve.a, color=colour, lw=2)
        ax.margins(x=0.02)


def plot_policy(policy: Policy, path: str | os.PathLike[str] | None, *, force: bool) -> Any:
    """Draw the curves, each state on an axis of its own."""
    check_figure(path, force=force)
    sample = policy.problem.model.states
    if not len(sample):
        raise InputError("the model of this policy keeps no states of the log to draw it along")
    curves = action_curves(policy, sample)
    columns = min(3, len(curves))
    figure, axes = make_axes(-(-len(curves) // columns), columns)
    for ax, curve in zip(axes.ravel(), curves, strict=False):
        room = 0.08 * (curve.limits[1] - curve.limits[0]) or 0.5
        draw_curve(ax, curve)
        ax.set(xlabel=curve.state, ylabel=curve.action)
        ax.set_ylim(curve.limits[0] - room, curve.limits[1] + room)
    for ax in axes.ravel()[len(curves) :]:
        ax.set_visible(False)
    return finished(figure, path, force=force)


def plan_brief(policy: Policy) -> Brief:
    """Say if the instrument is good enough, what the plan earns in the model, and what next."""
    verdict, compared = policy.problem.model.verdict, policy.comparison
    word = "" if verdict is None else verdict.word
    outside = () if compared is None else compared.outside
    advice = OUTSIDE.format(as_sentence(outside[0])) if outside else VALUE
    if doubts := policy.problem.model.doubts:
        advice = f"Do not act on it yet. {as_sentence(doubts[0])}"
    return Brief(
        (
            ("Instrument", instrument_sentence(verdict)),
            ("Plan", "Not compared with other rules." if compared is None else _earned(compared)),
            ("Next", _not_to_act(word) if word in UNTRUSTED else advice),
        )
    )


def _not_to_act(word: str) -> str:
    return f"Do not act on it: it rests on {UNTRUSTED[word]}."


def act_brief(
    policy: Policy,
    decisions: Mapping[str, Any],
    step: int | None,
    sure: Any = None,
    outside: tuple[str, ...] = (),
) -> Brief:
    """Say if the instrument is good enough, what the policy does, and what to do next.

    `decisions` are values by column of the actions; `sure` is the `Stability` of them, if known,
    and `outside` says which of them, or of the states, lie outside the log.
    """
    verdict, horizon = policy.problem.model.verdict, policy.problem.horizon
    advice = [] if sure is not None else ["`--model` shows how firmly the log recommends this."]
    if step is None and horizon > 1:
        first = f"This is for the first of {horizon:,} steps; `--step` asks about later ones."
        advice.insert(0, first)
    if outside:
        advice = ["Do not act on it without other evidence: the log has nothing like it."]
    if doubts := policy.problem.model.doubts:
        advice = [f"Do not act on it yet. {as_sentence(doubts[0])}"]
    if verdict is not None and verdict.word in UNTRUSTED:
        advice = [_not_to_act(verdict.word)]
    firm = "" if sure is None else _firmness(sure)
    return Brief(
        (
            ("Instrument", instrument_sentence(verdict)),
            ("Action", f"{'; '.join(_done(name, of) for name, of in decisions.items())}.{firm}"),
            ("Next", " ".join(advice) or "Compare it with what you would have done yourself."),
        )
    )


def _from_parts(
    path: str | os.PathLike[str], document: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Policy:
    """Make a policy again from what was saved."""
    try:
        model = model_from_parts(document["model"], unnest("model", arrays))
        terminal = document["terminal"]
        problem = Problem(
            model,
            reward_from_json(document["reward"], model),
            make_actions(Actions.from_json(document["actions"]), model.action),
            int(document["horizon"]),
            float(document["discount"]),
            terminal=None if terminal is None else import_saved(terminal),
            reward_at_end=end_reward(
                document["reward_at_end"], model.ends, by_state=terminal is not None
            ),
        )
        if not 1 <= problem.horizon <= LAST_STEP:
            raise FileError(f"its horizon is {problem.horizon}")
        settings = dict(document["rule"])
        make = RULES[settings.pop("kind")]
        compared = document["comparison"]
        policy = Policy(
            problem,
            make(problem, settings, unnest("rule", arrays)),
            None if compared is None else Comparison.from_json(compared),
        )
        with jax.enable_x64(True):
            Decision.of(policy)  # what it decides with can be made of what was saved
    except TrustError:
        raise
    except InputError as error:
        raise FileError(f"the policy {path} cannot be used: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FileError(f"{path} is not a complete policy: {error}") from error
    return policy


@lru_cache(maxsize=64)
def _compiled(decision: Decision) -> Callable[..., Any]:
    """Compile the decision for states (n, d_x) at step h, without memory."""

    def act(numbers: Any, x: Array, h: Array) -> Array:
        return decision.decide(numbers, x, h, decision.begin(len(x)))[0]

    return jax.jit(act)  # type: ignore[no-any-return]


def _path_of(function: Any) -> str | None:
    """Return ``module:name`` of a function that can be found again."""
    if function is None:
        return None
    path, imported = import_path(function.function)
    if imported:
        return path
    raise InputError(
        f"the policy cannot be saved: {path!r} cannot be imported; define it at the top of a module"
    )


def _earned(compared: Comparison) -> str:
    """Say what the plan earns, and how much more than the best rule that needs no plan."""
    plan, rival, share = compared.plan, compared.rival, compared.share
    earned = f"{plan.value:.4g} +- {plan.error:.2g} per episode in the model"
    if plan.simple:
        return f"No plan earns more than the simple rule {plan.name!r}, which earns {earned}."
    if rival is None:
        return f"It earns {earned}."
    gain = rival.behind - plan.behind
    if gain == 0:
        return f"It earns {earned}, no more than the simple rule {rival.name!r}."
    if gain < 0:
        return f"It earns {earned}, {-gain:.4g} less than the simple rule {rival.name!r}."
    most = "" if share is None else f", at least {100 * share:.3g}% of what can be gained"
    return (
        f"It earns {earned}, {gain:.4g} +- {rival.behind_error:.2g} more than the best simple "
        f"rule, {rival.name!r}{most}."
    )


def _done(name: str, values: Any) -> str:
    """Say what is done in one state, or over many."""
    listed = np.asarray(values)
    if len(listed) == 1:
        only = listed[0]
        return f"{name} {only}" if isinstance(only, str) else f"{name} {only:.4g}"
    if listed.dtype.kind in "fiu":
        ends = f"{name} from {listed.min():.4g} to {listed.max():.4g}"
        return f"{ends}, {listed.mean():.4g} on average of {len(listed):,} states"
    levels, counts = np.unique(listed.astype(str), return_counts=True)
    order = np.argsort(-counts)[:MOST_LEVELS]
    return f"{name} " + ", ".join(f"{levels[i]} in {counts[i]:,}" for i in order)


def _firmness(sure: Any) -> str:
    """Say how many of the models that the log allows recommend the same."""
    count = len(sure.agreement)
    outside = 0 if sure.outside is None else int(np.sum(sure.outside))
    least = "" if count == 1 else "At least "
    far = f" {outside:,} of {count:,} states with their actions are unlike the log's."
    share = f"{100 * np.min(sure.agreement):.3g}%"
    agreement = f" {least}{share} of the models that the log allows say the same."
    return agreement + (far if outside else "")
