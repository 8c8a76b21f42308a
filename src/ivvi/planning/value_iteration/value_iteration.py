"""Value iteration: phase 2 of Algorithm 1 of the paper.

    V_H = 0,   Q_h(x, a) = E[r_h(x, a, x') + discount V_h+1(x')],   V_h(x) = max_a Q_h(x, a)

with x' = m + e, m = W phi(x, a), e ~ N(0, noise_cov). The noise does not depend on x and a, so
the expectation of V is a function of m alone, G_h(m) = E V_h+1(m + e). Only G is stored, so
choosing an action needs no integration.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.errors import FileError, InputError, hint
from ivvi.planning.best_action import best_action
from ivvi.planning.newton import STEPS
from ivvi.planning.problem import Problem, Template
from ivvi.planning.quadrature import (
    Noise,
    check_integration,
    mean_reward,
    reward_noise,
    uses_next_state,
    uses_step,
)
from ivvi.planning.riccati import riccati_values
from ivvi.planning.value_iteration.backward_induction import backward, fixed_point
from ivvi.planning.value_iteration.category_grid import (
    MOST_LEVELS,
    CategoryGrid,
    other_columns,
)
from ivvi.planning.value_iteration.fourier_values import STATES, Fitted, sampled_states
from ivvi.planning.value_iteration.grid import Grid
from ivvi.planning.value_iteration.tabular import StateTable, is_coded

VALUES = ("auto", "grid", "categories", "fitted", "quadratic", "tabular", "unbounded")
CONVOLVED = 1 << 14
"""Nodes of the noise on grids of more than one dimension, where they cost next to nothing."""
CLIMB, FEW = 8, 2
"""Newton steps of a backup, and nets on a grid of more than two dimensions. Few are enough: the
error of the value is the square of the action's error."""
KINDS: dict[Any, Any] = {
    "grid": Grid,
    "categories": CategoryGrid,
    "fitted": Fitted,
    "quadratic": Fitted,
    "tabular": StateTable,
}


@dataclass(frozen=True)
class ValueIteration:
    """Backward induction over the horizon, or to the fixed point of a discounted problem.

    Parameters
    ----------
    value
        ``grid`` (cubic splines, d_x at most 4), ``categories`` (a grid of up to two other
        states for every combination of their levels), ``fitted`` (quadratic plus Fourier
        features of sampled states), ``quadratic``, ``tabular`` (there are no states besides those
        given), ``unbounded`` (Riccati's closed form as if every action were allowed; the actions
        taken are allowed ones), or ``auto``: tabular or categories for indicators,
        quadratic where Riccati's closed form holds, else a grid in one or two dimensions and
        fitted in more.
    points
        Points on each axis of the grid, or number of sampled states.
    integration
        ``gauss-hermite``, ``quasi`` (Sobol), ``antithetic``, or ``auto``: closed form for
        quadratic and Fourier features, Gauss-Hermite for noise of one or two dimensions,
        quasi Monte Carlo in more and where episodes end early.
    nodes
        Nodes of Gauss-Hermite on each axis of the noise, or draws.
    stationary
        Find the fixed point of an endless discounted problem instead of planning for the
        horizon; needs a discount below 1.
    tolerance
        Largest error of the fixed point, relative to the largest value.
    region
        Lowest and highest states that a grid covers; by default those of the log
        and those that the model can reach from them.
    """

    value: str = "auto"
    points: int | None = None
    integration: str = "auto"
    nodes: int | None = None
    stationary: bool = False
    tolerance: float = 1e-8
    region: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        if self.value not in VALUES:
            raise InputError(f"unknown value function {self.value!r}{hint(self.value, VALUES)}")
        if self.points is not None and self.points < 1:
            raise InputError(f"points is {self.points}; expected at least 1")
        check_integration(self.integration, self.nodes)
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance is {self.tolerance:g}; expected a number in (0, 1)")

    def solve(self, problem: Problem, *, seed: int = 0) -> ValueRule:
        """Plan, and report each step (`planning.progress`)."""
        if self.stationary and (problem.discount == 1 or uses_step(problem)):
            reason = "the discount is 1" if problem.discount == 1 else "the reward uses the step"
            raise InputError(f"a stationary plan is impossible because {reason}; remove stationary")
        with jax.enable_x64(True):
            return self._closed_form(problem) or self._iterated(problem, seed)

    def _closed_form(self, problem: Problem) -> ValueRule | None:
        if self.value not in ("auto", "quadratic", "unbounded"):
            return None
        bounded = self.value != "unbounded"
        values = riccati_values(problem, self.stationary, bounded=bounded)
        if values is None and not bounded:
            raise InputError(
                "values without bounds on the actions need a linear model and a concave quadratic "
                "or linear reward"
            )
        if values is None:
            return None
        d, noise = len(problem.model.state), problem.model.next_cov
        coefficients = np.array([value.coefficients(noise) for value in reversed(values)])
        shifts = np.zeros(len(values))
        parts = Fitted.quadratic(d), coefficients, shifts, Noise.none(d)
        return ValueRule(problem, *parts, self.value)

    def _iterated(self, problem: Problem, seed: int) -> ValueRule:
        noise = Noise.of(
            problem.model.next_cov,
            self.integration,
            self.nodes,
            seed,
            smooth=problem.terminal is None,
        )
        of_reward = reward_noise(problem, seed)
        if self.nodes is not None and uses_next_state(problem):
            of_reward = noise
        values, points, fit = self._design(problem, noise, seed, len(of_reward.weights))
        backup = partial(
            backup_of(Template.of(problem, problem.horizon)),
            problem.numbers,
            values,
            of_reward,
            points,
        )
        context = backup, fit, problem, len(points)
        if self.stationary:
            coefficients, shifts = fixed_point(*context, self.tolerance)
        else:
            coefficients, shifts = backward(*context)
        return ValueRule(problem, values, coefficients, shifts, of_reward, self.value)

    def _design(
        self, problem: Problem, noise: Noise, seed: int, nodes: int
    ) -> tuple[Any, np.ndarray, Any]:
        """Return the value function, the states where it is computed, and how it is fitted."""
        word = self.value if self.value != "auto" else usual_value(problem)
        if word == "tabular":
            table = StateTable.of(problem)
            return table, table.rows, table.design(problem)
        if word == "categories":
            of_levels = CategoryGrid.of(problem, self.points, seed)
            return of_levels, *of_levels.design(problem, _left(problem, self, seed))
        if word == "grid":
            grid = Grid.around(problem, self.points, seed, self.region, nodes)
            d, jumps = len(grid.low), problem.terminal is not None
            if self.integration == "auto" and (d > 2 or (d == 2 and jumps)):
                drawn = self.nodes or CONVOLVED
                noise = Noise.of(problem.model.next_cov, "quasi", drawn, seed)
            return grid, grid.lattice(), grid.averaging(noise, problem.terminal)
        states = sampled_states(problem, self.points or STATES, seed)
        fitted = Fitted.to(states, seed, cosines=word == "fitted")
        closed = self.integration == "auto" and problem.terminal is None
        return fitted, states, fitted.design(problem, None if closed else noise, states)


@dataclass(frozen=True, eq=False, repr=False)
class ValueRule(Compact):
    """Take the action that maximises E r(x, a, x', h) + discount (G(m) + shift).

    Attributes
    ----------
    values
        How G is evaluated from coefficients (`Grid`, `Fitted`, `StateTable`).
    coefficients
        Those of the last K steps, (K, p); the steps before them differ by a constant.
    shifts
        That constant for every step, (H,); (1,) with K = 1 when the plan is stationary.
    noise
        Nodes for rewards that look at x'; one node otherwise.
    planner
        The planner's word: a value function of `ValueIteration`, or ``visited``.
    """

    kind: ClassVar[str] = "value-iteration"
    problem: Problem
    values: Any
    coefficients: np.ndarray
    shifts: np.ndarray
    noise: Noise
    planner: str = "auto"

    @property
    def steps(self) -> int | None:
        """The horizon; None, for any number, when the plan is stationary."""
        return len(self.shifts) if len(self.shifts) == self.problem.horizon else None

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> ValueRule:
        """Make the rule again from `parts`."""
        if settings["value"] not in KINDS:
            raise FileError(f"unknown value function {settings['value']!r} in a saved policy")
        values = KINDS[settings["value"]].from_arrays(problem, arrays)
        noise = Noise(arrays["offsets"], arrays["weights"])
        planner = str(settings["planner"])
        return cls(problem, values, arrays["coefficients"], arrays["shifts"], noise, planner)

    def parts(self) -> Saved:
        """Return the kind of value, and arrays."""
        arrays = {
            "coefficients": self.coefficients,
            "shifts": self.shifts,
            "offsets": self.noise.offsets,
            "weights": self.noise.weights,
        }
        settings = {"value": self.values.kind, "planner": self.planner}
        return settings, arrays | self.values.arrays()

    def begin(self, n: int) -> Any:
        """Return the empty memory: the rule is stateless."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the best actions (n, d_a) in states (n, d_x) at step h."""
        return self.decide(self.numbers, x, h, memory)

    @cached_property
    def shape(self) -> Hashable:
        """All that the compiled `decide` depends on, except numbers."""
        parts = (self.values, self.coefficients, self.shifts, self.noise)
        leaves, tree = jax.tree_util.tree_flatten(parts)
        return self.problem.shape, tree, tuple(np.shape(leaf) for leaf in leaves)

    @property
    def numbers(self) -> Any:
        """The model's numbers, the value function, and its coefficients."""
        parts = (self.values, self.coefficients, self.shifts, self.noise)
        return self.problem.numbers, *parts

    def decide(self, numbers: Any, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Act with the numbers of any rule of the same `shape`."""
        return self._best(numbers, x, h)[0], memory

    def value(self, x: Any, step: int = 0) -> np.ndarray:
        """Return V_h(x) in the model, (n,), for states (n, d_x) at a step h."""
        with jax.enable_x64(True):
            states = jnp.atleast_2d(jnp.asarray(x, dtype=jnp.float64))
            return np.asarray(self._value(states, step))

    def ahead(self, m: np.ndarray, step: int) -> np.ndarray:
        """Return the values G_h(m), (n,), of means m (n, d_x) of the next state at a step h."""
        n_values, steps = len(self.coefficients), len(self.shifts)
        c = self.coefficients[np.clip(step - (steps - n_values), 0, n_values - 1)]
        with jax.enable_x64(True):
            return np.asarray(self._ahead(c, m) + self.shifts[min(step, steps - 1)])

    @cached_property
    def _ahead(self) -> Any:
        return jax.jit(lambda c, m: self.values(c, m))

    @cached_property
    def _value(self) -> Any:
        return jax.jit(lambda x, h: self._best(self.numbers, x, h)[1])

    def _best(self, numbers: Any, x: Array, h: Array) -> tuple[Array, Array]:
        of_model, values, coefficients, shifts, noise = numbers
        problem = self.problem.with_numbers(of_model)
        n_values, steps = len(coefficients), len(shifts)
        c = jnp.asarray(coefficients)[jnp.clip(h - (steps - n_values), 0, n_values - 1)]
        shift = jnp.asarray(shifts)[jnp.clip(h, 0, steps - 1)]
        q = action_value(problem, values, noise, c, h)
        width = width_of(values, noise)
        zoom = _is_wide(values)
        settings: dict[str, Any] = {"width": width, "steps": CLIMB if zoom else STEPS, "zoom": zoom}
        a, value = best_action(q, values.nearest(x), problem.actions, **settings)
        return a, value + problem.discount * shift


@lru_cache(maxsize=32)
def backup_of(template: Template) -> Any:
    """Compile V_h at points (n, d_x) from coefficients c of the next step's values."""

    def backup(numbers: Any, values: Any, noise: Noise, x: Array, c: Array, h: Array) -> Array:
        problem = template.example.with_numbers(numbers)
        q = action_value(problem, values, noise, jnp.asarray(c), h)
        width = width_of(values, noise)
        zoom = _is_wide(values)
        settings: dict[str, Any] = {"width": width, "steps": FEW if zoom else CLIMB, "zoom": zoom}
        return best_action(q, jnp.asarray(x), problem.actions, **settings)[1]

    return jax.jit(backup)


def action_value(problem: Problem, values: Any, noise: Noise, c: Array, h: Array) -> Any:
    """Return Q_h as a function of states (n, d_x) and actions (n, d_a)."""
    law = values if isinstance(values, StateTable | CategoryGrid) else noise

    def q(x: Array, a: Array) -> Array:
        m = problem.model.mean(x, a)
        ahead = problem.discount * values(c, m)
        if problem.model.ends:
            ahead = (1.0 - problem.model.chance_of_end(x, a)) * ahead
        return mean_reward(problem, law, x, a, m, h) + ahead

    return q


def _is_wide(values: Any) -> bool:
    """Return whether derivatives of the values cost far more than the values themselves."""
    return isinstance(values, Grid) and len(values.low) > 2


def width_of(values: Any, noise: Noise) -> int:
    """Return how many numbers one value of Q uses."""
    return int(values.width + noise.offsets.size)


def _left(problem: Problem, method: ValueIteration, seed: int) -> Noise:
    """Return the noise of the other columns once the levels of categories are known."""
    law = problem.model.noise_law
    settings = method.integration, method.nodes, seed
    return Noise.of(law.factor @ law.factor.T, *settings, smooth=problem.terminal is None)


def usual_value(problem: Problem) -> str:
    """Return the value function that fits the states."""
    d = len(problem.model.state)
    if d > 1 and is_coded(problem.support):
        return "tabular"
    categories = problem.model.categories
    if categories and len(other_columns(problem)) <= 2:
        count = math.prod(len(category.levels) for category in categories)
        return "categories" if count <= MOST_LEVELS else "fitted"
    return "grid" if d <= 2 else "fitted"
