"""A planning problem: dynamics, reward, actions and how long they matter."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ivvi.actions import Actions, make_actions
from ivvi.blocks import Array, Constant, Power
from ivvi.dynamics import Dynamics
from ivvi.errors import InputError, PlanningWarning
from ivvi.files import Saved
from ivvi.rewards import Learned, Reward, make_reward

MOST_STATES = 4096
EXPLODING = 1e3
"""Growth of the states over the horizon beyond which a model is called unstable."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Maximise E sum_h discount^h r(x_h, a_h, x_h+1) in x' = W phi(x, a) + noise.

    Attributes
    ----------
    model
        The dynamics.
    reward
        r(x, a, x', h).
    actions
        What may be done.
    horizon
        Steps of an episode.
    discount
        Weight of a step against the one before, in (0, 1].
    states
        States where the plan should be good, (n, d_x): a sample of the log's, and starts.
    terminal
        Tells which states (..., d_x) end an episode, (...); None when none does.
    """

    model: Dynamics
    reward: Reward
    actions: Actions
    horizon: int
    discount: float = 1.0
    states: np.ndarray | None = None
    terminal: Callable[[Array], Array] | None = None

    @classmethod
    def of(
        cls,
        model: Dynamics,
        reward: Any,
        actions: Any,
        *,
        horizon: int = 100,
        discount: float = 1.0,
        states: Any = None,
        terminal: Callable[[Array], Array] | None = None,
    ) -> Problem:
        """Check everything a user gives, and warn of models that should not be trusted."""
        if not isinstance(horizon, int | np.integer) or horizon < 1:
            raise InputError(f"the horizon is {horizon}; a whole number from 1 on is wanted")
        if not 0 < discount <= 1:
            raise InputError(f"the discount is {discount:g}; a number in (0, 1] is wanted")
        if terminal is not None and not callable(terminal):
            raise InputError(f"terminal is {terminal!r}; a function of states is wanted")
        if model.d_next != len(model.state):
            raise InputError(
                f"the model predicts {model.d_next} columns from {len(model.state)} states; "
                "planning needs the next value of every state"
            )
        made = make_actions(actions, model.action)
        given = None if states is None else state_rows(states, model)
        problem = cls(
            model, make_reward(reward, model), made, int(horizon), discount, given, terminal
        )
        _check_functions(problem)
        for text in problem.doubts:
            warnings.warn(text, PlanningWarning, stacklevel=3)
        return problem

    @cached_property
    def affine(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """c, P, Q of x' = c + P x + Q a when the model is of that form, else None."""
        return affine_part(self.model)

    @property
    def additive(self) -> bool:
        """Whether the mean is f(x) + g(a): no feature looks at states and actions at once."""
        return all(block.of in ("state", "input") for block in self.model.phi.blocks)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The numbers of the model: weights, noise covariance, knots."""
        return self.model.W, self.model.noise_cov, self.model.phi.numbers

    def with_numbers(self, numbers: tuple[Any, ...]) -> Problem:
        """Return the same problem in a model with other `numbers` (tracers of JAX too)."""
        W, noise_cov, knots = numbers
        phi = self.model.phi.with_numbers(knots)
        model = dataclasses.replace(self.model, phi=phi, W=W, noise_cov=noise_cov)
        return dataclasses.replace(self, model=model, reward=make_reward(self.reward, model))

    @cached_property
    def shape(self) -> Hashable:
        """Everything but the numbers of the model: problems of one shape share programs."""
        model, learned = self.model, isinstance(self.reward, Learned)
        return (
            model.phi.shape,
            (model.state, model.action, model.outputs),
            "learned" if learned else self.reward,
            json.dumps(self.actions.to_json()),
            self.discount,
            self.terminal,
        )

    @property
    def support(self) -> np.ndarray:
        """States to plan on, (n, d_x): those given, else the model's sample of the log."""
        chosen = self.model.states if self.states is None else self.states
        if len(chosen) == 0:
            raise InputError(
                "the model holds no sample of states (it was fitted from moments alone); pass "
                "the states where the plan should be good"
            )
        return chosen[:MOST_STATES]

    @property
    def starts(self) -> np.ndarray:
        """Where episodes begin, (n, d_x): the log's first states, else the states to plan on."""
        return self.model.starts if len(self.model.starts) else self.support

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a planner may be fooled by: unidentified actions, exploding dynamics."""
        found = []
        directions = [d for d in self.model.unidentified if _names_any(d, self.model.action)]
        if directions:
            found.append(
                f"the log does not identify the effect of {'; '.join(directions)}: the plan "
                "rests on the minimum-norm guess there"
            )
        if self.affine is not None:
            radius = float(np.abs(np.linalg.eigvals(self.affine[1])).max(initial=0.0))
            effective = min(self.horizon, 1 / (1 - self.discount) if self.discount < 1 else np.inf)
            if radius > 1 and effective * np.log(radius) > np.log(EXPLODING):
                found.append(
                    f"the model's states explode: spectral radius {radius:.4g} over "
                    f"{self.horizon} steps; values far ahead mean nothing"
                )
        return tuple(found)


class Rule(Protocol):
    """How a planner decides: a pure function for JAX, and settings and arrays to save.

    `kind` is the word of the planner that made it. A rule whose plan ends says after how many
    `steps`; without them (or None) it serves any number.
    """

    @property
    def kind(self) -> str:
        """The planner's word."""
        ...

    def begin(self, n: int) -> Any:
        """Return what is remembered between the steps of n episodes (arrays or ())."""
        ...

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return actions (n, d_a) for states (n, d_x) at step h, and what to remember."""
        ...

    def parts(self) -> Saved:
        """Return JSON settings and arrays from which the rule can be made again."""
        ...


class Planner(Protocol):
    """A planner: a frozen value that turns a problem into a rule."""

    def solve(self, problem: Problem, *, seed: int = 0, progress: Any = None) -> Rule:
        """Plan; `progress` is called with the number of iterations just done."""
        ...


def affine_part(model: Dynamics) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return c (d_x,), P (d_x, d_x), Q (d_x, d_a) of x' = c + P x + Q a, None if it is not."""
    d_x, d_a, d_next = len(model.state), len(model.action), model.d_next
    parts = {"c": np.zeros((d_next, 1)), "P": np.zeros((d_next, d_x)), "Q": np.zeros((d_next, d_a))}
    column = 0
    for block in model.phi.blocks:
        if isinstance(block, Constant):
            name = "c"
        elif isinstance(block, Power) and block.degree == 1 and block.of in ("state", "input"):
            name = "P" if block.of == "state" else "Q"
        else:
            return None
        width = parts[name].shape[1]
        parts[name] = parts[name] + model.W[:d_next, column : column + width]
        column += width
    return parts["c"][:, 0], parts["P"], parts["Q"]


def state_rows(states: Any, model: Dynamics) -> np.ndarray:
    """Return states that a user gives as rows (n, d_x) of finite numbers, or refuse them."""
    found = np.atleast_2d(np.asarray(states, dtype=np.float64))
    if found.ndim != 2 or found.shape[1] != len(model.state) or not np.isfinite(found).all():
        raise InputError(
            f"states of shape {found.shape} were given; rows of {len(model.state)} finite "
            f"numbers are wanted ({', '.join(model.state)})"
        )
    return found


def _check_functions(problem: Problem) -> None:
    """Try reward and end on a few states and actions: the right shape, finite numbers."""
    import jax
    import jax.numpy as jnp

    model, n = problem.model, 3
    rng = np.random.default_rng(0)
    states = model.states if problem.states is None else problem.states
    x = (
        states[rng.integers(len(states), size=n)]
        if len(states)
        else np.zeros((n, len(model.state)))
    )
    a = problem.actions.sample(n, rng)
    with jax.enable_x64(True):
        x_next = model.mean(jnp.asarray(x), jnp.asarray(a))
        try:
            values = np.asarray(problem.reward(jnp.asarray(x), jnp.asarray(a), x_next, 0))
        except (TypeError, ValueError, IndexError) as error:
            sentence = " ".join(str(error).split())[:200]
            raise InputError(f"the reward cannot be evaluated on {n} states: {sentence}") from error
        ends = np.zeros(n) if problem.terminal is None else problem.terminal(x_next)
    if np.shape(ends) != (n,):
        raise InputError(
            f"terminal returned shape {np.shape(ends)} for {n} states; true or false for each "
            "is wanted"
        )
    if values.shape != (n,):
        raise InputError(
            f"the reward returned shape {values.shape} for {n} states; one number for each is "
            "wanted (sum over the last axis)"
        )
    if not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        where = ", ".join(f"{s}={v:.4g}" for s, v in zip(model.state, x[bad], strict=True))
        raise InputError(f"the reward is {values[bad]} at {where}; a finite number is wanted")


def _names_any(direction: str, names: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", direction) for name in names)
