"""The part of a report that shows a policy."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import numpy as np

from ivvi.dynamics.ends import in_words
from ivvi.planning.policy import action_curves
from ivvi.reporting.fit_pictures import policy_slices
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.page import Figure, Part, Points, Section, Text
from ivvi.reward_functions import Function
from ivvi.rewards import is_reward, reward_to_json

LOOKED_AT = 256
"""States of the log in which the first and the last step are compared."""


def policy_section(policy: Any, fit: FitView) -> Section:
    """Say what was planned for, and draw what the policy does along each state."""
    problem = policy.problem
    paid = in_words(problem.reward_at_end)
    at_end = (("when an episode ends", paid),) if paid else ()
    parts: list[Part] = [
        Points(
            (
                ("reward", _words(problem.reward)),
                ("actions", _allowed(problem.actions)),
                ("horizon", f"{problem.horizon:,} steps, discount {problem.discount:g}"),
                ("planner", policy.rule.kind),
                *at_end,
            )
        )
    ]
    states = problem.model.states if len(problem.model.states) else fit.model.states
    curves = action_curves(policy, states) if states.size else []
    if moving := [curve for curve in curves if not curve.is_flat]:
        parts.append(
            Figure(
                "What the policy does",
                policy_slices(moving),
                "Each action along the states that it answers most. A state runs from its 5% to "
                "its 95% quantile in the log while the others stay at their medians.",
                f"ivvi act POLICY --state {','.join(f'{v:g}' for v in np.median(states, axis=0))}",
            )
        )
    if flat := {curve.action: curve.limits[0] for curve in curves if curve.is_flat}:
        said = ", ".join(_decision(name, value, fit) for name, value in flat.items())
        parts.append(
            Text(
                (
                    f"The same along every state, from its 5% to its 95% quantile in the log while "
                    f"the others stay at their medians: {said}.",
                )
            )
        )
    if states.size and _changes_near_the_end(policy, states):
        parts.append(
            Text(
                (
                    f"All of this is at the first of {problem.horizon:,} steps. Near the last one "
                    "the policy does something else, since less is left to be gained: "
                    "`ivvi act POLICY --step H` asks for step H.",
                )
            )
        )
    return Section("The policy", "Planned with the instrumented model.", tuple(parts))


def _changes_near_the_end(policy: Any, states: np.ndarray) -> bool:
    """Whether the last step's actions are others than the first step's in the log's states."""
    last, some = policy.problem.horizon - 1, states[:LOOKED_AT]
    return last > 0 and not np.allclose(policy(some), policy(some, step=last), atol=1e-6)


def _decision(action: str, value: float, fit: FitView) -> str:
    """Write an action with its value, an indicator as the level that it stands for."""
    for coded in fit.fit.roles.categories:
        if action in coded.names and not coded.boolean:
            level = coded.levels[1 + coded.names.index(action)]
            return f"{coded.column} = {level}" if value else f"{coded.column} is not {level}"
    return f"{action} = {value:.4g}"


def _words(reward: Any) -> str:
    """Write a reward as its name and settings; a function by its path and what it asks for."""
    if isinstance(reward, Function):
        asked = f", asks for {' and '.join(reward.asks)}" if reward.asks else ""
        return f"{reward.path}{asked}"
    known = is_reward(reward) and is_dataclass(reward)
    settings = {k: v for k, v in reward_to_json(reward).items() if k != "kind"} if known else {}
    words = [f"{name.replace('_', ' ')} {_setting(value)}" for name, value in settings.items()]
    return f"{reward.kind}: {', '.join(words)}" if words else reward.kind if known else str(reward)


def _allowed(actions: Any) -> str:
    low, high = actions.low, actions.high
    if len(low) == actions.dim and np.ptp(low) == 0 == np.ptp(high):
        return f"each of {actions.dim} between {low[0]:g} and {high[0]:g}"
    return str(actions).removeprefix("Actions(").removesuffix(")")


def _setting(value: Any) -> str:
    """Write a setting: a tuple of one as its number."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
