"""A policy: states in, actions out; saved and loaded without pickle."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ivvi._io.brief import Brief
from ivvi._io.files import load_folder, nest, save_folder, unnest
from ivvi._io.result import brief_html
from ivvi._io.trust import Trust, trusting
from ivvi.actions import Actions, make_actions
from ivvi.dynamics.ends import end_reward, end_reward_to_json
from ivvi.dynamics.rollout import Decision
from ivvi.dynamics.saved_model import model_from_parts, model_parts
from ivvi.errors import FileError, InputError, TrustError
from ivvi.features.blocks import Array
from ivvi.features.custom_block import import_path, import_saved
from ivvi.planning import RULES
from ivvi.planning.brief import plan_brief
from ivvi.planning.comparison import Comparison
from ivvi.planning.policy_plot import plot_policy
from ivvi.planning.problem import Problem, Rule, as_columns, state_numbers
from ivvi.rewards import reward_from_json, reward_to_json

KIND = "policy"
LAST_STEP = 2**31
"""A step that no program counts to."""


@dataclass(frozen=True, eq=False)
class Policy:
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
        columns by name, categories by the names of their levels.
        """
        if (columns := as_columns(x)) is not None:
            model = self.problem.model
            return model.decode_actions(self(model.encode_states(columns), step))
        names = self.problem.model.state
        states = state_numbers(x, self.problem.model)
        if not isinstance(step, Integral) or not 0 <= step < LAST_STEP:
            raise InputError(f"the step is {step!r}; expected a whole number from 0 on")
        if states.ndim not in (1, 2) or states.shape[-1] != len(names):
            raise InputError(
                f"states of shape {states.shape} were given; expected (n, {len(names)}) or "
                f"({len(names)},) ({', '.join(names)})"
            )
        check_steps(self, step + 1)
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
        model, arrays = model_parts(problem.model)
        settings, rule_arrays = self.rule.parts()
        document = {
            "model": model,
            "reward": reward_to_json(problem.reward),
            "actions": problem.actions.to_json(),
            "horizon": problem.horizon,
            "discount": problem.discount,
            "terminal": _path_of(problem.terminal),
            "reward_at_end": end_reward_to_json(problem.reward_at_end),
            "rule": {"kind": self.rule.kind, **settings},
            "comparison": None if self.comparison is None else self.comparison.to_json(),
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
    known = getattr(policy.rule, "steps", None) if isinstance(policy, Policy) else None
    if known is not None and steps > known:
        raise InputError(
            f"the plan has {known} steps; {steps} are asked for: plan with a longer horizon"
        )


def load_policy(path: str | os.PathLike[str], *, trust: Trust = ()) -> Policy:
    """Load what `Policy.save` saved.

    Nothing in it is executed. A reward, features, an end or a fallback that were a user's
    function are imported by their path, from the packages that are named in `trust` alone.
    """
    document, arrays = load_folder(path, KIND)
    with trusting(path, trust):
        return _from_parts(path, document, arrays)


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
                document["reward_at_end"], model.ends, told=terminal is not None
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
