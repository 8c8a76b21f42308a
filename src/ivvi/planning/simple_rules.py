"""Rules that need no plan: one action held for ever, and what was usual in the log."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ivvi._io.files import Saved
from ivvi.features.blocks import Array
from ivvi.planning.behaviour_policy import Usual
from ivvi.planning.problem import Problem, Rule

MOST_HELD = 64
"""Actions that are tried as held ones."""


@dataclass(frozen=True, eq=False)
class HeldRule:
    """Do the same, `action` (d_a,), in every state."""

    kind: ClassVar[str] = "held"
    action: np.ndarray

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> HeldRule:
        """Make the rule again from `parts`."""
        return cls(arrays["action"])

    def parts(self) -> Saved:
        """Return the action."""
        return {}, {"action": self.action}

    def begin(self, n: int) -> Any:
        """Nothing is remembered."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the action for every state."""
        return self.decide(self.numbers, x, h, memory)

    @property
    def shape(self) -> Hashable:
        """Held actions of one width share programs."""
        return self.kind, len(self.action)

    @property
    def numbers(self) -> Any:
        """The action."""
        return self.action

    def decide(self, numbers: Any, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Act with any held action."""
        return jnp.broadcast_to(jnp.asarray(numbers), (len(x), len(self.action))), memory


@dataclass(frozen=True, eq=False)
class UsualRule:
    """Do what was usual in such a state, or the allowed action next to it."""

    kind: ClassVar[str] = "usual"
    problem: Problem
    usual: Usual

    @classmethod
    def of(cls, problem: Problem) -> UsualRule:
        """Regress the actions of the model's sample of the log on the states."""
        return cls(problem, Usual.of(problem.model))

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> UsualRule:
        """Make the rule again from `parts`."""
        return cls(problem, Usual(problem.model.phi, arrays["slopes"], arrays["range"]))

    def parts(self) -> Saved:
        """Return the regression."""
        return {}, {"slopes": np.asarray(self.usual.slopes), "range": np.asarray(self.usual.range)}

    def begin(self, n: int) -> Any:
        """Nothing is remembered."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the usual action of every state."""
        return self.problem.actions.nearest(self.usual(x)), memory


@dataclass(frozen=True, eq=False)
class Unplanned:
    """A planner that returns the same rule whatever the model."""

    rule: Rule

    def solve(self, problem: Problem, *, seed: int = 0, progress: Any = None) -> Rule:
        """Return the rule."""
        return self.rule


def held_actions(problem: Problem, seed: int) -> np.ndarray:
    """Return actions that are worth trying as held ones, (k, d_a): all, or corners and draws."""
    actions, rng = problem.actions, np.random.default_rng(seed)
    if actions.is_finite and actions.count <= MOST_HELD:
        return actions.choices
    some = (*actions.corners, np.zeros(actions.dim), actions.middle)
    allowed = [action for action in some if actions.contains(action)]
    return np.unique(np.vstack([*allowed, actions.sample(MOST_HELD - 4, rng)]), axis=0)
