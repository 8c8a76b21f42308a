"""A policy: states in, actions out; saved without pickle, summarised in words, and plotted."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import nest, save_folder
from ivvi._io.result import Brief, Records, TableResult, brief_html
from ivvi.dynamics.end_payoffs import end_reward_to_json
from ivvi.dynamics.range_warnings import decision_doubts
from ivvi.dynamics.rollout import Decision
from ivvi.dynamics.state_encoding import as_columns, state_numbers
from ivvi.errors import InputError, PlanningWarning
from ivvi.features.custom_block import import_path
from ivvi.planning.comparison import Comparison
from ivvi.planning.problem import Problem, Rule
from ivvi.policy.brief import plan_brief
from ivvi.policy.curves import plot_policy
from ivvi.rewards import reward_to_json

KIND = "policy"


@dataclass(frozen=True, eq=False, repr=False)
class Policy(TableResult):
    """The policy that a planner recommends.

    Calling it with states gives actions. It is deterministic: the same states give the
    same actions.

    Attributes
    ----------
    problem
        The planning problem: model, reward, actions, horizon.
    rule
        How the planner decides.
    comparison
        Returns of the plan and its rivals in the model; None where it was not compared.
    """

    problem: Problem
    rule: Rule
    comparison: Comparison | None = None

    def __call__(self, x: Any, step: int = 0) -> Any:
        """Return actions (n, d_a) for states (n, d_x), or (d_a,) for one state (d_x,).

        For a table with the columns of the log (a mapping or a data frame), the actions are
        returned as named columns, categories by the names of their levels. A `PlanningWarning` is
        issued for states far outside those of the log, and for actions outside.
        """
        if (columns := as_columns(x)) is not None:
            model = self.problem.model
            return model.decode_actions(self(model.encode_states(columns), step))
        actions = self.decide(x, step)
        for text in self.doubts(x, actions):
            warnings.warn(text, PlanningWarning, stacklevel=2)
        return actions

    def doubts(self, x: Any, actions: np.ndarray) -> tuple[str, ...]:
        """Return warnings for states (n, d_x) and actions (n, d_a) outside those of the log.

        For a rule that abstains there, return none.
        """
        if getattr(self.rule, "abstain", None) is not None:
            return ()
        states = np.atleast_2d(np.asarray(x, dtype=np.float64))
        return decision_doubts(self.problem.model, states, np.atleast_2d(actions))

    def decide(self, x: Any, step: int = 0) -> np.ndarray:
        """Return the same actions as a call, without warnings about states unlike the log's."""
        names = self.problem.model.state
        states = state_numbers(x, self.problem.model)
        last = self.problem.horizon - 1
        if not isinstance(step, Integral) or not 0 <= step <= last:
            whole = "" if isinstance(step, Integral) else "expected a whole number: "
            raise InputError(f"the step is {step!r}; {whole}the plan has the steps 0 to {last}")
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
        """Return the memory at the first step of n episodes that run side by side."""
        return self.rule.begin(n)

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return actions and the new memory (a warm start), inside `jax.jit` too."""
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
        """Plot the actions along the states that they depend on most; `path` saves the figure."""
        return plot_policy(self.problem.model, self.decide, path, force=force)

    @property
    def brief(self) -> Brief:
        """Whether the instrument is good enough, what the plan earns, and what to do next."""
        return plan_brief(self.problem, self.comparison)

    def summary(self) -> str:
        """Return three plain sentences, then returns of the plan and its rivals in the model."""
        compared = [] if self.comparison is None else ["", self.comparison.summary()]
        return "\n".join([self.brief.text, *compared])

    def records(self) -> Records:
        """Return the returns of the plan and its rivals in the model, one row each, best first."""
        if self.comparison is None:
            raise InputError(
                "this policy was not compared with other rules, so it has no table; plan with "
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
    """Raise an error for more steps than the plan has."""
    planned_steps = getattr(policy.rule, "steps", None) if isinstance(policy, Policy) else None
    if planned_steps is not None and steps > planned_steps:
        raise InputError(
            f"the plan has {planned_steps} steps, fewer than the {steps} requested; plan with a "
            "longer horizon"
        )


@lru_cache(maxsize=64)
def _compiled(decision: Decision) -> Callable[..., Any]:
    """Compile the decision for states (n, d_x) at step h, without memory."""

    def act(numbers: Any, x: Array, h: Array) -> Array:
        return decision.decide(numbers, x, h, decision.begin(len(x)))[0]

    return jax.jit(act)  # type: ignore[no-any-return]


def _path_of(function: Any) -> str | None:
    """Return ``module:name`` of a function that can be imported."""
    if function is None:
        return None
    path, imported = import_path(function.function)
    if imported:
        return path
    raise InputError(
        f"the policy cannot be saved: {path!r} cannot be imported; define it at the top of a module"
    )
